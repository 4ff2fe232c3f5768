//! What the two CPU runtimes of one thread have in common: memory of the host, and streams that have one schedule.

/// Makes a struct of [`ScheduledStreams`](crate::runtime::scheduler::ScheduledStreams) a runtime. Its `allocated` is told of each
/// allocation.
macro_rules! one_thread_runtime {
    ($runtime:ty) => {
        impl $crate::runtime::Runtime for $runtime {
            fn name(&self) -> &'static str {
                "cpu"
            }

            fn allocate(
                &self,
                bytes: usize,
            ) -> $crate::Result<std::sync::Arc<dyn $crate::runtime::Memory>> {
                let memory: std::sync::Arc<dyn $crate::runtime::Memory> =
                    std::sync::Arc::new($crate::runtime::memory::HostMemory::allocate(bytes)?);
                self.allocated(&memory);
                Ok(memory)
            }

            fn can_multicast(
                &self,
                _: &std::sync::Arc<dyn $crate::runtime::Memory>,
            ) -> $crate::Result<()> {
                Ok(())
            }

            fn create_multicast(
                &self,
                _: u32,
                _: usize,
            ) -> $crate::Result<std::sync::Arc<dyn $crate::runtime::Multicast>> {
                Ok(std::sync::Arc::new($crate::runtime::multicast::HostMulticast))
            }

            fn open_multicast(
                &self,
                _: &[u8],
                _: u32,
                _: usize,
            ) -> $crate::Result<std::sync::Arc<dyn $crate::runtime::Multicast>> {
                Ok(std::sync::Arc::new($crate::runtime::multicast::HostMulticast))
            }

            /// Kernels run in the process: they reach all of its memory.
            unsafe fn register(
                &self,
                _: u64,
                _: usize,
                _: &str,
            ) -> $crate::Result<$crate::runtime::Keep> {
                Ok(std::sync::Arc::new(()))
            }

            unsafe fn write(
                &self,
                to: &std::sync::Arc<dyn $crate::runtime::Memory>,
                offset: usize,
                bytes: &[u8],
            ) -> $crate::Result<()> {
                $crate::runtime::op::copy_in(to, offset, bytes)
            }

            fn address_space(&self) -> u64 {
                0
            }

            fn stream(&self) -> $crate::Result<std::sync::Arc<dyn $crate::runtime::StreamOps>> {
                Ok(self.0.stream())
            }

            /// Two, as it has one thread but is there to have things happen at the same time.
            fn parallelism(&self) -> u32 {
                2
            }

            fn share_host(&self, _local_processes: usize) {} // it has one thread anyway

            fn is_driven(&self) -> bool {
                false
            }

            fn operate(&self, operation: Box<dyn ferroccl_proxy::Operation>) -> $crate::Result<()> {
                self.0.append(operation);
                Ok(())
            }
        }
    };
}
pub(super) use one_thread_runtime;
