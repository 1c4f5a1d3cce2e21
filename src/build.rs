//! How the library is linked. LuaJIT may close it while code of ours still runs (a
//! finalizer, the background thread), so it is never unmapped.
fn main() {
    println!("cargo:rerun-if-changed=src/build.rs");
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,nodelete");
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,noexecstack");
}
