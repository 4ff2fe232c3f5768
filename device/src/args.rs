//! What a kernel is called with.

use core::mem::offset_of;

use crate::abi::{ChannelWork, Comm, Signature, WindowPeers, Work};
use crate::gpu;

/// The argument of a kernel: on the CPU an address, on a GPU a parameter, of which a word is loaded when it is asked for.
///
/// A user's kernel has an argument of its own. What its primitives ask of a [`Work`] is in memory on a GPU, too
/// ([`KernelArgs::in_memory`]). Which of the two it is a compiler knows.
#[derive(Clone, Copy, Debug)]
pub struct KernelArgs {
    work: *const Work,
    in_memory: bool,
}

/// The word of [`Work`] that begins with a field.
macro_rules! word {
    ($args:ident . $field:ident) => {
        // SAFETY: the constructors' contracts; the field is there, and begins a word.
        unsafe { $args.word::<{ offset_of!(Work, $field) }>() }
    };
}

impl KernelArgs {
    /// # Safety
    /// On the CPU `work` is the kernel's argument, valid until the kernel ends; on a GPU it is a kernel that asks.
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(work: *const Work) -> Self {
        KernelArgs { work, in_memory: false }
    }

    /// Those of a kernel whose argument is another.
    ///
    /// # Safety
    /// `work` is in memory that the kernel reads, valid until it ends, and nobody writes it.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn in_memory(work: *const Work) -> Self {
        KernelArgs { work, in_memory: true }
    }

    /// Whether it is no call's: of a user's kernel.
    #[inline(always)]
    pub(crate) fn is_in_memory(self) -> bool {
        self.in_memory
    }

    /// The word that begins so many bytes behind the beginning.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    unsafe fn word<const OFFSET: usize>(self) -> u64 {
        // SAFETY: the caller's; the constructors' contracts.
        unsafe {
            if self.in_memory {
                self.work.byte_add(OFFSET).cast::<u64>().read()
            } else {
                gpu::argument::<OFFSET>(self.work)
            }
        }
    }

    /// [`KernelArgs::word`], where only a running kernel knows which word it is.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn word_at(self, offset: usize) -> u64 {
        // SAFETY: the caller's; the constructors' contracts.
        unsafe {
            if self.in_memory {
                self.work.byte_add(offset).cast::<u64>().read()
            } else {
                gpu::argument_at(self.work, offset)
            }
        }
    }

    /// [`Work::comm`].
    #[inline(always)]
    #[must_use]
    pub fn comm(self) -> *const Comm {
        word!(self.comm) as *const Comm
    }

    /// [`Work::input`].
    #[inline(always)]
    #[must_use]
    pub fn input<T>(self) -> *const T {
        word!(self.input) as *const T
    }

    /// [`Work::output`].
    #[inline(always)]
    #[must_use]
    pub fn output<T>(self) -> *mut T {
        word!(self.output) as *mut T
    }

    /// [`Work::scalar`], and whether it is an address.
    #[inline(always)]
    #[must_use]
    pub fn scalar(self) -> (u64, bool) {
        (word!(self.scalar), word!(self.root) >> 32 != 0)
    }

    /// [`Work::count`].
    #[inline(always)]
    #[must_use]
    pub fn count(self) -> u64 {
        word!(self.count)
    }

    /// [`Work::root`].
    #[inline(always)]
    #[must_use]
    pub fn root(self) -> u32 {
        word!(self.root) as u32
    }

    /// [`Work::extra`].
    #[inline(always)]
    #[must_use]
    pub fn extra(self) -> u64 {
        word!(self.extra)
    }

    /// [`Work::extra`] of a channel.
    #[inline(always)]
    #[must_use]
    pub fn extra_of(self, channel: u32) -> u64 {
        word!(self.extra) + u64::from(channel) * word!(self.extra_stride)
    }

    /// [`Work::digest`].
    #[inline(always)]
    #[must_use]
    pub fn digest(self) -> u64 {
        word!(self.digest)
    }

    /// [`Work::input_peers`].
    #[inline(always)]
    #[must_use]
    pub fn input_peers(self) -> *const WindowPeers {
        word!(self.input_peers) as *const WindowPeers
    }

    /// [`Work::output_peers`].
    #[inline(always)]
    #[must_use]
    pub fn output_peers(self) -> *const WindowPeers {
        word!(self.output_peers) as *const WindowPeers
    }

    /// [`Work::signature`].
    #[inline(always)]
    #[must_use]
    pub fn signature(self) -> Signature {
        // SAFETY: the constructors' contracts; a signature is four words.
        unsafe {
            Signature {
                seq: self.word::<{ offset_of!(Work, signature) }>(),
                count: self.word::<{ offset_of!(Work, signature) + 8 }>(),
                call: self.word::<{ offset_of!(Work, signature) + 16 }>(),
                root: self.word::<{ offset_of!(Work, signature) + 24 }>(),
            }
        }
    }

    /// An element of [`Work::channels`].
    #[inline(always)]
    #[must_use]
    pub fn part(self, channel: u32) -> ChannelWork {
        let at = offset_of!(Work, channels) + size_of::<ChannelWork>() * channel as usize;
        // SAFETY: the constructors' contracts; the host launches at most MAX_CHANNELS blocks.
        unsafe { ChannelWork { offset: self.word_at(at), count: self.word_at(at + 8) } }
    }
}

// `scalar` reads two halves of a word, `signature` and `part` the words of these.
const _: () = assert!(
    offset_of!(Work, scalar_by_address) == offset_of!(Work, root) + 4
        && cfg!(target_endian = "little")
        && offset_of!(Signature, count) == 8
        && offset_of!(Signature, call) == 16
        && offset_of!(Signature, root) == 24
        && offset_of!(ChannelWork, offset) == 0
        && offset_of!(ChannelWork, count) == 8
);
