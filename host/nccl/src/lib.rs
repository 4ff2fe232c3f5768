//! NCCL's C interface over FerroCCL: the functions of NCCL 2.30's `nccl.h`, in a library that programs made for NCCL find by
//! its name, `libnccl.so.2`.
//!
//! ```text
//! a program ─► init, children, lifecycle, collectives, messages, one_sided, ...   its call: arguments are checked, by NCCL's names
//!                │
//!              answer     a result code, the text for ncclGetLastError, the log; no panic leaves
//!              handles    what an ncclComm_t stands for; a handle that is none is an error
//!              group      ncclGroupStart ... ncclGroupEnd: jobs (what makes communicators), then calls
//!              place      the caller's device: a GPU's context with the caller's streams, or the CPU
//!                │
//!                └─► ferroccl::Communicator
//! ```
//!
//! With `FERROCCL_DEVICE=cpu` pointers are the host's, and a call has ended when it returns, or, in a group, when the group has
//! (with `blocking = 0`: when `ncclCommGetAsyncError` says so). `docs/nccl.md` has what differs from NCCL.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, reason = "names are NCCL's")]

#[macro_use]
mod answer;
#[macro_use]
mod typed;

mod buffers;
mod children;
mod collectives;
mod config;
mod device_api;
mod group;
mod handles;
mod init;
mod jobs;
mod kernels;
mod lifecycle;
mod memory;
mod messages;
mod one_sided;
mod operators;
mod params;
mod place;
mod properties;
mod suspend;
mod types;
mod windows;
