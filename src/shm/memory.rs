//! A stretch of memory that other processes change while we look: a mapped
//! file in production, the heap in unit tests (so that Miri can run them).
//!
//! What lies in it is only ever reached as a reference to a [`Shared`] type,
//! all of whose fields are atomics, and only this module makes those
//! references; or, where a lock keeps all others away, as a [`Plain`] type,
//! whose references are made by the holder of that lock.
use super::error::{Error, error};
use std::alloc;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Alignment of every mapping, and of the heap that stands in for one.
pub const PAGE: usize = 4096;

/// A type that may lie in memory shared with other processes.
///
/// # Safety
/// Every bit pattern is a valid value, every byte that is written after
/// creation belongs to an atomic, the layout is `repr(C)` or that of one
/// atomic, nothing in it needs dropping or points anywhere, and its alignment
/// is at most [`PAGE`].
pub unsafe trait Shared: Sync {}

// SAFETY: one atomic, any bits.
unsafe impl Shared for std::sync::atomic::AtomicU64 {}
// SAFETY: one atomic, any bits.
unsafe impl Shared for std::sync::atomic::AtomicU32 {}
// SAFETY: one atomic, any bits.
unsafe impl Shared for portable_atomic::AtomicU128 {}
// SAFETY: an array is laid out as its elements are.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// A type that is not atomic and may lie there all the same, behind a lock.
///
/// # Safety
/// Every bit pattern is a valid value: integers, floats, and `repr(C)`
/// structures and arrays of them. Nothing in it points anywhere, and its
/// alignment is at most [`PAGE`].
pub unsafe trait Plain: Copy + Send + 'static {}

/// Owned; freed or unmapped when dropped.
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    heap: Option<alloc::Layout>,
}

// SAFETY: the bytes are reached only as `Shared` types, which are `Sync`, as
// `Plain` types by the one holder of their lock, or as bytes of a mapping that
// nobody writes; the pointer is freed once, by `drop`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroes, aligned to a page.
    pub fn heap(len: usize) -> Memory {
        let layout = alloc::Layout::from_size_align(len.max(PAGE), PAGE).expect("a sane length");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            alloc::handle_alloc_error(layout)
        };
        Memory {
            start,
            len,
            heap: Some(layout),
        }
    }

    /// A heap copy of bytes that nobody will change.
    pub fn copy_of(bytes: &[u8]) -> Memory {
        let memory = Memory::heap(bytes.len());
        // SAFETY: the destination is fresh, as long, and nobody else has it yet.
        unsafe {
            memory
                .start
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        memory
    }

    /// The first `len` bytes of a file, shared; read-only unless `write`.
    pub fn map(fd: BorrowedFd<'_>, len: usize, write: bool) -> Result<Memory, Error> {
        let protection = if write {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no
        // memory of ours; the arguments are checked by the kernel.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(error!(
                "cannot map {len} bytes: {}",
                std::io::Error::last_os_error()
            ));
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| error!("mapped at address zero"))?;
        Ok(Memory {
            start,
            len,
            heap: None,
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Inside of the memory and aligned.
    #[inline]
    fn assert_holds<T>(&self, offset: usize, count: usize) {
        let bytes = count
            .checked_mul(size_of::<T>())
            .and_then(|b| b.checked_add(offset));
        assert!(
            bytes.is_some_and(|end| end <= self.len),
            "outside of the memory"
        );
        assert!(offset.is_multiple_of(align_of::<T>()), "not aligned");
    }

    #[inline]
    pub fn slice<T: Shared>(&self, offset: usize, count: usize) -> &[T] {
        self.assert_holds::<T>(offset, count);
        // SAFETY: inside the mapping and aligned (just asserted: the start is
        // aligned to a page, and by `Shared`'s promise that is enough), alive as
        // long as `self` is borrowed; any bits are a value and other processes
        // change them through atomics only, by `Shared`'s promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset).cast::<T>(), count) }
    }

    #[inline]
    pub fn at<T: Shared>(&self, offset: usize) -> &T {
        &self.slice::<T>(offset, 1)[0]
    }

    /// Where `count` values lie that a lock protects: inside of the memory and
    /// aligned. Whoever makes a reference of it holds that lock, and the range
    /// is no [`Shared`] type's.
    #[inline]
    pub fn plain<T: Plain>(&self, offset: usize, count: usize) -> NonNull<[T]> {
        self.assert_holds::<T>(offset, count);
        // SAFETY: inside of the allocation, as just asserted.
        let first = unsafe { self.start.add(offset) };
        NonNull::slice_from_raw_parts(first.cast(), count)
    }

    /// The bytes of a mapping that nobody writes (a published file), or of a
    /// heap copy.
    ///
    /// # Safety
    /// As long as the slice lives nobody writes to the memory: not this
    /// process, and not another through the file.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: inside the mapping; that nobody writes is the caller's part.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.heap {
            // SAFETY: allocated by `heap` with this very layout; dropped once.
            Some(layout) => unsafe { alloc::dealloc(self.start.as_ptr(), layout) },
            // SAFETY: mapped by `map` with this length; every reference into it
            // borrowed `self`, so none is left.
            None => unsafe {
                libc::munmap(self.start.as_ptr().cast(), self.len);
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn heap_is_zeroed_and_bounded() {
        let memory = Memory::heap(2 * PAGE);
        let words = memory.slice::<AtomicU64>(PAGE, PAGE / 8);
        assert!(words.iter().all(|w| w.load(Relaxed) == 0));
        words[3].store(7, Relaxed);
        assert_eq!(memory.at::<AtomicU64>(PAGE + 24).load(Relaxed), 7);
        for (offset, count) in [
            (PAGE, PAGE / 8 + 1),
            (4, 1),
            (usize::MAX - 7, 1),
            (0, usize::MAX),
        ] {
            let outside = std::panic::AssertUnwindSafe(|| memory.slice::<AtomicU64>(offset, count));
            assert!(
                std::panic::catch_unwind(|| outside().len()).is_err(),
                "{offset} {count}"
            );
        }
    }

    #[test]
    fn a_copy_is_the_same_bytes() {
        for bytes in [&b""[..], b"abc"] {
            let memory = Memory::copy_of(bytes);
            // SAFETY: nobody writes to this copy.
            assert_eq!(unsafe { memory.bytes() }, bytes);
        }
    }
}
