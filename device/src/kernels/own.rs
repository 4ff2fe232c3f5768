//! Kernels of other crates, by macros that make both faces of a row: for the host a [`Row`](super::Row), for the GPU the PTX entry.

/// Kernels of another crate, a row each: where the crate is compiled for the host, a constant [`Row`](crate::kernels::Row) with the
/// CPU function and the steps that it counts; where it is compiled for a GPU, the PTX entry.
///
/// A row is the constant's name, the name of the PTX entry, and the algorithm, element type, reduction and
/// [`Protocol`](crate::prims::Protocol). A crate of PTX entries needs `#![no_std]` and `#![feature(abi_ptx)]`. With a first line of
/// `static` all rows are in a slice, too.
///
/// ```
/// use ferroccl_device::abi::ProtocolId;
/// use ferroccl_device::collectives::AllReduceRing;
/// use ferroccl_device::prims::Ll128;
/// use ferroccl_device::reduce::Sum;
///
/// ferroccl_device::kernels! {
///     /// All of them.
///     pub static ROWS;
///     /// Sums of floats around a ring.
///     pub SUM = "my_all_reduce_sum_float": AllReduceRing, f32, Sum, Ll128;
/// }
/// assert_eq!((SUM.kernel.name, SUM.protocol), ("my_all_reduce_sum_float", Some(ProtocolId::Ll128)));
/// assert_eq!(ROWS.len(), 1);
/// ```
#[macro_export]
macro_rules! kernels {
    ($(#[$m:meta])* $vis:vis static $ALL:ident;
        $($(#[$km:meta])* $kvis:vis $CONST:ident = $name:literal: $A:ty, $T:ty, $R:ty, $P:ty;)*) => {
        #[cfg(not(target_arch = "nvptx64"))]
        $(#[$m])*
        $vis static $ALL: &[$crate::kernels::Row] = &[$($CONST),*];
        $crate::kernels! { $($(#[$km])* $kvis $CONST = $name: $A, $T, $R, $P;)* }
    };
    ($($(#[$m:meta])* $vis:vis $CONST:ident = $name:literal: $A:ty, $T:ty, $R:ty, $P:ty;)*) => { $(
        #[cfg(not(target_arch = "nvptx64"))]
        $(#[$m])*
        $vis const $CONST: $crate::kernels::Row =
            $crate::kernels::Row::of::<$A, $T, $R, $P>($name);

        #[cfg(target_arch = "nvptx64")]
        const _: () = $crate::ptx_entry!($name, $A, $T, $R, $P);
    )* };
}

/// Kernels of a protocol of another crate for every collective that is written in verbs: rings, trees, chains, Bruck's and the others, for the
/// given element types and reductions. As [`kernels!`](crate::kernels!), with the names that the library's kernels have:
/// `all_reduce_ring_ll64_sum_float`.
///
/// ```
/// use ferroccl_device::prims::Ll128;
/// use ferroccl_device::reduce::{AnyFloat, Sum};
///
/// ferroccl_device::protocol_kernels! {
///     /// All that my protocol does.
///     pub static ROWS = "mine": Ll128;
///     "float" f32: "sum" Sum, "any" AnyFloat;
///     "double" f64: "sum" Sum;
/// }
/// assert!(ROWS.iter().any(|row| row.kernel.name == "all_reduce_tree_mine_any_float"));
/// assert!(ROWS.iter().any(|row| row.kernel.name == "all_gather_bruck_mine"));
/// assert_eq!(ROWS.len(), 7 + 3 * 7);
/// ```
#[macro_export]
macro_rules! protocol_kernels {
    ($(#[$m:meta])* $vis:vis static $ALL:ident = $proto:literal: $P:ty; $($types:tt)*) => {
        #[cfg(not(target_arch = "nvptx64"))]
        $(#[$m])*
        $vis static $ALL: &[$crate::kernels::Row] =
            &$crate::protocol_rows!(kernel_row $proto $P: $($types)*);

        #[cfg(target_arch = "nvptx64")]
        const _: &[()] = &$crate::protocol_rows!(ptx_entry $proto $P: $($types)*);
    };
}

/// The rows of [`protocol_kernels!`](crate::protocol_kernels!), each by a macro of this crate.
#[doc(hidden)]
#[macro_export]
macro_rules! protocol_rows {
    ($row:ident $proto:literal $P:ty: $($type:literal $T:ty: $($op:literal $R:ty),*;)*) => { [
        $crate::$row!(concat!("all_gather_ring_", $proto), $crate::collectives::AllGatherRing, u8, $crate::reduce::Sum, $P),
        $crate::$row!(concat!("all_gather_bruck_", $proto), $crate::collectives::AllGatherBruck, u8, $crate::reduce::Sum, $P),
        $crate::$row!(concat!("all_gather_linear_", $proto), $crate::collectives::AllGatherLinear, u8, $crate::reduce::Sum, $P),
        $crate::$row!(concat!("all_to_all_linear_", $proto), $crate::collectives::AllToAllLinear, u8, $crate::reduce::Sum, $P),
        $crate::$row!(concat!("broadcast_ring_", $proto), $crate::collectives::BroadcastRing, u8, $crate::reduce::Sum, $P),
        $crate::$row!(concat!("broadcast_tree_", $proto), $crate::collectives::BroadcastTree, u8, $crate::reduce::Sum, $P),
        $crate::$row!(concat!("broadcast_linear_", $proto), $crate::collectives::BroadcastLinear, u8, $crate::reduce::Sum, $P),
        $($(
            $crate::$row!(concat!("all_reduce_ring_", $proto, "_", $op, "_", $type), $crate::collectives::AllReduceRing, $T, $R, $P),
            $crate::$row!(concat!("all_reduce_tree_", $proto, "_", $op, "_", $type), $crate::collectives::AllReduceTree, $T, $R, $P),
            $crate::$row!(concat!("all_reduce_doubling_", $proto, "_", $op, "_", $type), $crate::collectives::AllReduceDoubling, $T, $R, $P),
            $crate::$row!(concat!("reduce_scatter_ring_", $proto, "_", $op, "_", $type), $crate::collectives::ReduceScatterRing, $T, $R, $P),
            $crate::$row!(concat!("reduce_scatter_bruck_", $proto, "_", $op, "_", $type), $crate::collectives::ReduceScatterBruck, $T, $R, $P),
            $crate::$row!(concat!("reduce_scatter_linear_", $proto, "_", $op, "_", $type), $crate::collectives::ReduceScatterLinear, $T, $R, $P),
            $crate::$row!(concat!("reduce_chain_", $proto, "_", $op, "_", $type), $crate::collectives::Chain, $T, $R, $P),
        )*)*
    ] };
}

/// A kernel's row, for the host.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_row {
    ($name:expr, $A:ty, $T:ty, $R:ty, $P:ty) => {
        $crate::kernels::Row::of::<$A, $T, $R, $P>($name)
    };
}

/// A kernel's PTX entry, as an expression without value.
#[doc(hidden)]
#[macro_export]
macro_rules! ptx_entry {
    ($name:expr, $A:ty, $T:ty, $R:ty, $P:ty) => {{
        /// # Safety
        /// The argument is the call.
        #[unsafe(export_name = $name)]
        unsafe extern "ptx-kernel" fn entry(_: $crate::kernels::Argument) {
            $crate::gpu::launch_bounds::<
                {
                    $crate::kernels::threads::<$R>(<$A as $crate::collectives::KernelCode>::THREADS)
                },
            >();
            // SAFETY: the launch's contract; the argument is found without its address.
            unsafe { <$A as $crate::collectives::KernelCode>::run::<$T, $R, $P>(core::ptr::null()) }
        }
    }};
}

/// The argument of a kernel of the crate's own: a `struct` that host and kernel have in common. Its fields are plain values without padding
/// between them: addresses are `u64`s.
///
/// ```
/// use ferroccl_device::abi::DeviceComm;
///
/// ferroccl_device::kernel_argument! {
///     /// What the kernel takes.
///     pub struct Arguments {
///         /// By which it communicates.
///         pub comm: DeviceComm,
///         /// Address of the data, and its elements.
///         pub data: u64,
///         pub count: u64,
///     }
/// }
/// assert_eq!(size_of::<Arguments>(), 96);
/// ```
#[macro_export]
macro_rules! kernel_argument {
    ($(#[$m:meta])* $vis:vis struct $Name:ident { $($(#[$fm:meta])* $fvis:vis $field:ident: $T:ty),* $(,)? }) => {
        $(#[$m])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        $vis struct $Name { $($(#[$fm])* $fvis $field: $T),* }

        #[cfg(not(target_arch = "nvptx64"))]
        const _: () = {
            const fn is_plain<T: $crate::bytemuck::Pod>() {}
            $(is_plain::<$T>();)*
            assert!(size_of::<$Name>() == 0 $(+ size_of::<$T>())*, "there is padding between the fields");
            // SAFETY: its fields are, and there is nothing between them.
            unsafe impl $crate::bytemuck::Zeroable for $Name {}
            // SAFETY: as above.
            unsafe impl $crate::bytemuck::Pod for $Name {}
        };
    };
}

/// Kernels that are no calls, a row each: functions of the crate's own with one argument, which communicate by themselves
/// ([`DeviceComm`](crate::abi::DeviceComm)). Where the crate is compiled for the host, a row is a constant
/// [`UserKernel`](crate::kernels::UserKernel); where it is compiled for a GPU, the PTX entry.
///
/// A row is the constant's name, the name of the PTX entry, the most threads of a block, the function, and the type of its argument
/// ([`kernel_argument!`](crate::kernel_argument!)). The function is `unsafe fn(A)`, and `#[inline(always)]`, so that it is compiled into the entry. A crate
/// of PTX entries needs `#![no_std]` and `#![feature(abi_ptx)]`.
///
/// ```
/// use ferroccl_device::abi::DeviceComm;
///
/// ferroccl_device::kernel_argument! {
///     pub struct Arguments { comm: DeviceComm, data: u64 }
/// }
///
/// #[inline(always)]
/// unsafe fn meet(arguments: Arguments) {
///     // SAFETY: the launch's contract.
///     let mut comm = unsafe { arguments.comm.open() };
///     comm.barrier(0);
/// }
///
/// ferroccl_device::user_kernels! {
///     /// A kernel that does nothing but meet.
///     pub MEET = "meet": 512, meet, Arguments;
/// }
/// assert_eq!((MEET.kernel().name, MEET.kernel().argument), ("meet", size_of::<Arguments>()));
/// ```
#[macro_export]
macro_rules! user_kernels {
    ($($(#[$m:meta])* $vis:vis $CONST:ident = $name:literal: $threads:expr, $function:path, $A:ty;)*) => { $(
        #[cfg(not(target_arch = "nvptx64"))]
        $(#[$m])*
        $vis const $CONST: $crate::kernels::UserKernel<$A> = {
            /// # Safety
            /// The launch's contract; an argument is there.
            unsafe fn cpu(argument: *const $crate::abi::Work) {
                // SAFETY: the caller's.
                unsafe { $function(argument.cast::<$A>().read()) }
            }
            // SAFETY: `cpu` reads one, and the entry below takes one.
            unsafe { $crate::kernels::UserKernel::new($name, cpu, $threads) }
        };

        #[cfg(target_arch = "nvptx64")]
        const _: () = {
            /// # Safety
            /// The launch's contract.
            #[unsafe(export_name = $name)]
            unsafe extern "ptx-kernel" fn entry(argument: $A) {
                $crate::gpu::launch_bounds::<{ $threads }>();
                // SAFETY: the launch's contract.
                unsafe { $function(argument) }
            }
        };
    )* };
}
