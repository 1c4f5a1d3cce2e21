//! Sluice.
pub mod bridge;
pub mod domain;
pub mod engine;
pub mod ffi;
pub mod redis;
pub mod shm;
