//! What a caller holds: a device, its streams, its buffers.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use ferroccl_device::abi::DataType;
use ferroccl_device::element::{F8E4M3, F8E5M2};

use crate::error::{Error, Result};
use crate::runtime::{Event, Memory, Runtime, StreamOps};

/// A type that buffers are made of: the Rust side of a [`DataType`].
///
/// Kernels take the size of an element from its [`DataType`], so that nobody else can say which type has which:
///
/// ```compile_fail,E0277
/// #[derive(Clone, Copy, Debug, bytemuck::Zeroable, bytemuck::Pod)]
/// #[repr(transparent)]
/// struct Byte(u8);
///
/// impl ferroccl::Element for Byte {
///     const TYPE: ferroccl::DataType = ferroccl::DataType::F64; // eight bytes
///     fn scalar(self) -> u64 {
///         0
///     }
/// }
/// ```
pub trait Element: sealed::Sealed + Pod + Send + Sync + Debug {
    /// Its name in calls.
    const TYPE: DataType;

    /// It, as the factor of a pre-multiplied sum: the bits of `Work::scalar`.
    #[doc(hidden)]
    fn scalar(self) -> u64;
}

mod sealed {
    /// Of this module's types only.
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty => $d:ident, |$v:ident| $scalar:expr;)*) => { $(
        const _: () = assert!(size_of::<$t>() == DataType::$d.size());
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const TYPE: DataType = DataType::$d;
            fn scalar(self) -> u64 {
                let $v = self;
                u64::from($scalar)
            }
        }
    )* };
}
elements! {
    i8 => I8, |v| v.cast_unsigned();
    u8 => U8, |v| v;
    i32 => I32, |v| v.cast_unsigned();
    u32 => U32, |v| v;
    i64 => I64, |v| v.cast_unsigned();
    u64 => U64, |v| v;
    half::f16 => F16, |v| v.to_f32().to_bits();
    half::bf16 => Bf16, |v| v.to_f32().to_bits();
    f32 => F32, |v| v.to_bits();
    f64 => F64, |v| v.to_bits();
    F8E4M3 => F8E4M3, |v| f32::from(v).to_bits();
    F8E5M2 => F8E5M2, |v| f32::from(v).to_bits();
}

/// A device: where buffers live and kernels run. Cheap to clone.
///
/// ```
/// let device = ferroccl::Device::cpu();
/// let stream = device.stream()?;
/// let buffer = device.upload(&[1.0f32, 2.0, 3.0])?;
/// assert_eq!(buffer.slice(1..).to_vec(&stream)?, [2.0, 3.0]);
/// # Ok::<(), ferroccl::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Device(Arc<dyn Runtime>);

impl Device {
    /// A device on any runtime.
    #[must_use]
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Device(runtime)
    }

    /// What it runs on.
    #[must_use]
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.0
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// When the runtime cannot.
    pub fn stream(&self) -> Result<Stream> {
        Ok(Stream(self.0.stream()?))
    }

    /// Allocates `len` zeroed elements.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the size overflows; [`Error::System`] when there is not enough memory.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let memory = self.0.allocate(Self::bytes::<T>(len)?)?;
        Ok(DeviceBuffer { memory, start: 0, len, marker: PhantomData })
    }

    /// [`Device::alloc`] of memory that other devices and processes may reach, too (`ncclMemAlloc`): for a buffer that is
    /// registered as a [`Window`](crate::Window). It may wait for kernels that run, so a program makes such buffers at its start.
    /// On a GPU that has multicast objects it takes whole pages of the GPU's, of 2 MiB as a rule, and network cards do not reach it.
    ///
    /// # Errors
    /// As [`Device::alloc`].
    pub fn alloc_shared<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let memory = self.0.allocate_window(Self::bytes::<T>(len)?)?;
        Ok(DeviceBuffer { memory, start: 0, len, marker: PhantomData })
    }

    /// Bytes of `len` elements.
    fn bytes<T>(len: usize) -> Result<usize> {
        len.checked_mul(size_of::<T>()).ok_or_else(|| {
            Error::argument("len", format!("{len} elements are more than memory has"))
        })
    }

    /// Allocates a buffer with a copy of `data`.
    ///
    /// # Errors
    /// As [`Device::alloc`].
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<DeviceBuffer<T>> {
        let buffer = self.alloc(data.len())?;
        // SAFETY: the memory is the runtime's, and new.
        unsafe { self.0.write(&buffer.memory, 0, bytemuck::cast_slice(data))? };
        Ok(buffer)
    }
}

/// An ordered queue of work on a device. Calls return at once; [`Stream::synchronize`] waits.
#[derive(Clone, Debug)]
pub struct Stream(Arc<dyn StreamOps>);

impl Stream {
    /// A stream of a runtime.
    #[must_use]
    pub fn new(ops: Arc<dyn StreamOps>) -> Self {
        Stream(ops)
    }

    /// The runtime's side of it.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn StreamOps> {
        &self.0
    }

    /// Whether two handles are of one stream.
    pub(crate) fn is(&self, other: &Stream) -> bool {
        self.identity() == other.identity()
    }

    /// Whether both are captured in one graph, or neither is in any.
    pub(crate) fn is_captured_with(&self, other: &Stream) -> bool {
        self.0.capture_id() == other.0.capture_id()
    }

    /// What tells it from other streams, as long as one of its handles is there.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// That this is a stream of the device whose address space this is.
    pub(crate) fn check_space(&self, space: u64) -> Result<()> {
        if self.0.address_space() == space {
            return Ok(());
        }
        Err(Error::argument("stream", "it is of another device than the memory"))
    }

    /// Waits until everything put in so far has ended.
    ///
    /// # Errors
    /// The first error of what ran since the last call.
    pub fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }

    /// An event that happens when everything put in so far has ended. It takes the stream's error with it. In a stream that is being
    /// captured in a graph it does not happen: [`Stream::finished`] says so.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let device = ferroccl::Device::cpu();
    /// let (rank, stream) = (ferroccl::Communicator::init_all(&device, 1)?.remove(0), device.stream()?);
    /// rank.barrier(&stream)?;
    /// let ended = stream.record();
    /// while stream.wait_for(&ended, Duration::from_millis(100)).is_none() { /* look after something else */ }
    /// assert!(matches!(ended.result(), Some(Ok(()))));
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    #[must_use]
    pub fn record(&self) -> Event {
        let event = Event::new();
        self.0.record(&event, true);
        event
    }

    /// Waits for an event of this stream ([`Stream::record`]), for `limit` at most. Gives what came of it; `None` when it has not
    /// happened within the limit.
    pub fn wait_for(&self, event: &Event, limit: Duration) -> Option<Result<()>> {
        self.0.wait_for(event, limit)
    }

    /// Whether everything put in so far has ended; does not block.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn query(&self) -> Result<bool> {
        self.0.query()
    }
}

/// A range of device memory. A handle: clones and slices name the same memory, as device pointers do,
/// and it is freed when the last of them, and the last call that uses it, is gone.
///
/// Nothing orders what two streams do with one buffer, as in CUDA: while work in one stream writes to a buffer, no other
/// stream may use it, unless the two are ordered (by [`Stream::synchronize`], or by calls of one communicator, which run in
/// the order in which they are made). The values are then whatever a race leaves; on the CPU runtime that is a data race.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    memory: Arc<dyn Memory>,
    start: usize,
    len: usize,
    marker: PhantomData<T>,
}

impl<T> Clone for DeviceBuffer<T> {
    fn clone(&self) -> Self {
        DeviceBuffer {
            memory: Arc::clone(&self.memory),
            start: self.start,
            len: self.len,
            marker: PhantomData,
        }
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// `len` elements of an allocation, from byte `offset` on: memory that the caller has, or another type's view of a buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the allocation does not have them, or the first is not aligned to its size.
    ///
    /// ```
    /// use ferroccl::{Device, DeviceBuffer};
    ///
    /// let device = Device::cpu();
    /// let bytes = device.upload(&[1u8, 0, 0, 0, 2, 0, 0, 0])?;
    /// let words = DeviceBuffer::<u32>::in_memory(bytes.memory().clone(), 4, 1)?;
    /// assert_eq!(words.to_vec(&device.stream()?)?, [2]);
    /// assert!(DeviceBuffer::<u32>::in_memory(bytes.memory().clone(), 4, 2).is_err());
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn in_memory(memory: Arc<dyn Memory>, offset: usize, len: usize) -> Result<Self> {
        let size = size_of::<T>();
        let end = len.checked_mul(size).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > memory.len()) {
            let has = memory.len();
            let reason = format!("{len} elements from byte {offset} on are not in its {has} bytes");
            return Err(Error::argument("memory", reason));
        }
        let address = memory.address() + offset as u64;
        // Elements are counted from the allocation's start, which may be anywhere.
        if !address.is_multiple_of(size as u64) || !offset.is_multiple_of(size) {
            let reason = format!("{address:#x} is no multiple of {size}, an element's size");
            return Err(Error::argument("memory", reason));
        }
        Ok(DeviceBuffer { memory, start: offset / size, len, marker: PhantomData })
    }

    /// The first `len` elements of an allocation, which has them.
    #[cfg(feature = "cuda")]
    pub(crate) fn of_memory(memory: Arc<dyn Memory>, len: usize) -> Self {
        DeviceBuffer { memory, start: 0, len, marker: PhantomData }
    }

    /// Its number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The allocation it is part of.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// The address of its first element, as kernels see it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.address() + (self.start * size_of::<T>()) as u64
    }

    /// A part of it, in elements; a range that reaches beyond the end is cut there.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let from = match range.start_bound() {
            Bound::Included(&i) => i,
            Bound::Excluded(&i) => i.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&i) => i.saturating_add(1),
            Bound::Excluded(&i) => i,
            Bound::Unbounded => self.len,
        };
        let from = from.min(self.len);
        let to = to.clamp(from, self.len);
        DeviceBuffer { start: self.start + from, len: to - from, ..self.clone() }
    }

    /// Enqueues a copy of `data` into the start of the buffer; `data` is free again when this returns.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `data` is longer than the buffer, or the stream is of another device.
    pub fn copy_from(&self, data: &[T], stream: &Stream) -> Result<()> {
        self.check("data", data.len())?;
        stream.check_space(self.memory.address_space())?;
        stream.0.copy_in(&self.memory, self.start * size_of::<T>(), bytemuck::cast_slice(data))
    }

    /// Copies the start of the buffer into `data`, after everything in `stream`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_from`]; an error of the stream.
    pub fn copy_to(&self, data: &mut [T], stream: &Stream) -> Result<()> {
        self.check("data", data.len())?;
        stream.check_space(self.memory.address_space())?;
        stream.0.copy_out(&self.memory, self.start * size_of::<T>(), bytemuck::cast_slice_mut(data))
    }

    /// The buffer's elements, after everything in `stream`.
    ///
    /// # Errors
    /// An error of the stream.
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>> {
        let mut data = vec![T::zeroed(); self.len];
        self.copy_to(&mut data, stream)?;
        Ok(data)
    }

    fn check(&self, argument: &'static str, len: usize) -> Result<()> {
        if len <= self.len {
            return Ok(());
        }
        Err(Error::argument(
            argument,
            format!("{len} elements do not fit a buffer of {}", self.len),
        ))
    }
}
