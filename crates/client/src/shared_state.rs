//! [`SharedState`]: what parts of the client keep for all tasks that use one connection, by its type. So the connection
//! holds what it does not know.
use parking_lot::Mutex;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One value of each type that was asked for. Bounded by the types of this crate that ask.
#[derive(Default)]
pub(crate) struct SharedState(Mutex<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl SharedState {
    /// The one of this type; made when it is asked for first.
    pub(crate) fn of<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let kept = self.0.lock().entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default())).clone();
        kept.downcast().expect("it is kept under its type")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tasks would not see each other's state, or one part see another's.
    #[test]
    fn all_who_ask_for_a_type_share_one_value_of_it() {
        let shared = SharedState::default();
        *shared.of::<Mutex<u32>>().lock() += 1;
        assert_eq!((*shared.of::<Mutex<u32>>().lock(), *shared.of::<Mutex<u64>>().lock()), (1, 0));
    }
}
