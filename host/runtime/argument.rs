//! What a kernel is called with.

use bytemuck::Pod;
use ferroccl_device::abi::Work;

/// A kernel's argument, by value: a driver copies it at the launch, elsewhere it stays where it is until the kernel has ended. It is
/// aligned to 16 bytes.
#[derive(Debug)]
pub struct Argument {
    words: Box<[Word]>,
    bytes: usize,
    comm: u64,
}

/// Aligned as far as a kernel's parameter may have to be.
type Word = u128;

const _: () =
    assert!(align_of::<Word>() == 16 && size_of::<Work>().is_multiple_of(size_of::<Word>()));

impl Argument {
    /// Any value, of a kernel that works for the communicator at address `comm` ([`Work::comm`]); 0 is none.
    #[must_use]
    pub fn new<T: Pod>(value: &T, comm: u64) -> Self {
        let bytes = bytemuck::bytes_of(value);
        let whole = bytes.chunks_exact(size_of::<Word>());
        let rest = whole.remainder();
        let mut words = Vec::with_capacity(bytes.len().div_ceil(size_of::<Word>()));
        words.extend(whole.map(bytemuck::pod_read_unaligned::<Word>));
        if !rest.is_empty() {
            let mut last: Word = 0;
            bytemuck::bytes_of_mut(&mut last)[..rest.len()].copy_from_slice(rest);
            words.push(last);
        }
        Argument { words: words.into_boxed_slice(), bytes: bytes.len(), comm }
    }

    /// What kernels of calls take.
    #[must_use]
    pub fn of_work(work: &Work) -> Self {
        Argument::new(work, work.comm)
    }

    /// The same, which `write` writes where it stays. A work is most of what a small call writes, so it is not written elsewhere and copied.
    ///
    /// # Errors
    /// Those of `write`, which gets zeros.
    pub(crate) fn write_work<R, E>(
        write: impl FnOnce(&mut Work) -> Result<R, E>,
    ) -> Result<(Self, R), E> {
        let mut words = vec![0; size_of::<Work>() / size_of::<Word>()].into_boxed_slice();
        let work: &mut Work = bytemuck::from_bytes_mut(bytemuck::cast_slice_mut(&mut words));
        let result = write(work)?;
        let comm = work.comm;
        Ok((Argument { words, bytes: size_of::<Work>(), comm }, result))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    /// Where it is: what a CPU function takes ([`Kernel::cpu`](ferroccl_device::kernels::Kernel::cpu)).
    #[must_use]
    pub fn as_ptr(&self) -> *const Work {
        self.words.as_ptr().cast()
    }

    /// Address of the communicator that its kernel works for; 0 is none.
    #[must_use]
    pub fn comm(&self) -> u64 {
        self.comm
    }
}

#[cfg(test)]
mod tests {
    use ferroccl_device::abi::MAX_CHANNELS;

    use super::*;

    #[test]
    fn a_value_of_any_size_is_there_and_aligned() {
        let argument =
            Argument::new(&[1u8, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], 9);
        assert_eq!(argument.bytes(), (1..18).collect::<Vec<u8>>());
        assert_eq!((argument.as_ptr().addr() % 16, argument.comm()), (0, 9));
        assert_eq!(Argument::new(&[0u8; 0], 0).bytes(), [0u8; 0]);
    }

    #[test]
    fn a_work_is_that_which_was_written() {
        let write = |work: &mut Work| {
            assert!(bytemuck::bytes_of(work).iter().all(|byte| *byte == 0));
            (work.comm, work.count, work.channels[MAX_CHANNELS - 1].count) = (7, 8, 9);
            Ok::<_, ()>(*work)
        };
        let (argument, work) = Argument::write_work(write).unwrap();
        assert_eq!(argument.bytes(), Argument::of_work(&work).bytes());
        assert_eq!((argument.as_ptr().addr() % 16, argument.comm()), (0, 7));
        assert_eq!(Argument::write_work(|_| Err::<(), _>("no")).unwrap_err(), "no");
    }
}
