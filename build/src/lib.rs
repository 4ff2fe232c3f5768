//! From a device crate to PTX.
//!
//! A crate of GPU kernels in Rust becomes PTX by a rustc that can ([`Compiler`]), which need not be the one that runs
//! cargo. [`Builder`] compiles what is asked for, a module at a time or several side by side, and keeps what it made:
//!
//! * `core` for the GPU, made once where the compiler comes without;
//! * crates that kernels depend on ([`DeviceCrate::depends_on`]), such as `ferroccl-device` with its protocols;
//! * modules ([`Module`]): a crate with its `cfg`s for one architecture.
//!
//! ```text
//! device crate, cfgs, architecture --rustc--> assembly --lines, headers--> PTX --zstd--> packed
//! ```
//!
//! Between the assembly and the PTX two things happen. Of the compiler's source lines the innermost of the crates at
//! hand are kept, with the calls that they were inlined through (the module `lines` has the format). And what device code
//! says in comments, as rustc has no words for it, goes where PTX wants it: `asm!("//@maxntid 512")` becomes the kernel's
//! launch bound, and the first parameter of each kernel is called `work`, by which `ferroccl_device` asks for its call.
//!
//! ```no_run
//! use ferroccl_build::{Builder, Compiler, DeviceCrate, Module, Target};
//!
//! let device = DeviceCrate::new("ferroccl_device", "device/src/lib.rs");
//! let kernels = DeviceCrate::new("my_kernels", "src/kernels/lib.rs").depends_on(device);
//! let builder = Builder::new(Compiler::find()?, "target/ptx");
//! let ptx = builder.compile(&Module::new("my_kernels", kernels, Target::sm(80)))?;
//! println!("{}: {:?}", ptx.text().len(), ptx.kernels());
//! # Ok::<(), ferroccl_build::Error>(())
//! ```
//!
//! Nothing here knows which kernels FerroCCL has: its table names the modules, and its build script asks for them.

mod builder;
mod bundle;
mod command;
mod compiler;
mod error;
mod figures;
mod hash;
mod headers;
mod lines;
mod script;
mod source;

pub use builder::{Builder, Progress, Ptx};
pub use bundle::{Bundle, Bundled};
pub use command::end_with_parent;
pub use compiler::Compiler;
pub use error::{Error, Result, Unfit};
pub use figures::Figures;
pub use hash::hash_source;
pub use script::{cache_dir, compile_own_kernels};
pub use source::{DeviceCrate, Module, Target};
