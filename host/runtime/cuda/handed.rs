//! What an application hands us of another crate's: kept, and let go where that crate can give it back.

use std::sync::Arc;

use super::gpu::Gpu;
use crate::runtime::Keep;

/// A share of something, let go with the GPU's context current. The last share may be ours, and then the other crate's
/// calls, which give it back, are made by a thread of ours, where no context is current.
struct Handed<T> {
    gpu: Arc<Gpu>,
    share: Option<Arc<T>>,
}

impl<T> Drop for Handed<T> {
    fn drop(&mut self) {
        let share = self.share.take();
        // An error is that of a context that is lost; the share is let go all the same.
        let _ = self.gpu.run(|| {
            drop(share);
            Ok(())
        });
    }
}

/// What keeps a share until nothing needs it any more.
pub(super) fn keep<T: Send + Sync + 'static>(gpu: &Arc<Gpu>, share: Arc<T>) -> Keep {
    Arc::new(Handed { gpu: Arc::clone(gpu), share: Some(share) })
}
