//! Kernels that are no calls: a function of its own argument, which communicates by itself through a
//! [`DeviceComm`](crate::abi::DeviceComm) in that.

use core::marker::PhantomData;

use crate::abi::Work;
use crate::kernels::{Kernel, PtxText};

/// A kernel of the user's that takes an `A` by value. [`user_kernels!`](crate::user_kernels!) makes it.
pub struct UserKernel<A> {
    kernel: Kernel,
    /// It takes one, and has none.
    argument: PhantomData<fn(A)>,
}

// Derived, they would ask the same of `A`.
impl<A> Clone for UserKernel<A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for UserKernel<A> {}

impl<A> core::fmt::Debug for UserKernel<A> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "UserKernel({})", self.kernel.name)
    }
}

impl<A: Copy> UserKernel<A> {
    /// What the macro makes.
    ///
    /// # Safety
    /// `cpu` reads an `A` at the address that it gets, and so does the PTX entry of this name of its parameter.
    #[doc(hidden)]
    #[must_use]
    pub const unsafe fn new(name: &'static str, cpu: unsafe fn(*const Work), threads: u32) -> Self {
        let argument = size_of::<A>();
        assert!(align_of::<A>() <= 16, "an argument is aligned to 16 bytes at most");
        assert!(
            argument <= 4096,
            "a kernel takes 4096 bytes of parameters at most (CUDA C++ Programming Guide, before CUDA 12.1)"
        );
        let kernel = Kernel { name, cpu, threads, steps: None, blocks: 1, ptx: None, argument };
        UserKernel { kernel, argument: PhantomData }
    }

    /// It, with the module of PTX that has its entry.
    #[must_use]
    pub const fn with_ptx(self, text: &'static str) -> Self {
        UserKernel { kernel: Kernel { ptx: Some(PtxText(text)), ..self.kernel }, ..self }
    }

    /// For a runtime.
    #[must_use]
    pub const fn kernel(&self) -> Kernel {
        self.kernel
    }
}
