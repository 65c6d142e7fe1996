//! What rooms above hang on a reactor's home; this room may not name their types.
//!
//! State: one slot, filled once. Thread class: any thread. Laws: none.

use std::any::Any;
use std::sync::{Arc, OnceLock};

/// See the module's text.
#[derive(Default)]
pub(crate) struct Erased(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Erased {
    /// The first value stays.
    pub(crate) fn set<T: Send + Sync + 'static>(&self, value: Arc<T>) {
        // Err only says that there is one already.
        let _ = self.0.set(value);
    }

    /// The value, if there is one and it is a `T`.
    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.get()?.clone().downcast().ok()
    }
}
