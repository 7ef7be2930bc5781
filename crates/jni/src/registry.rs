//! What Java has open, by numbers that are given once: a number that was given back means nothing any more, whatever
//! Java's threads do with it.
use cairn_sdk::{Error, File, Result, Volume};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Values by number, each with the number of the volume that it belongs to.
pub struct Registry<T> {
    items: RwLock<BTreeMap<i64, (i64, Arc<T>)>>,
    kind: &'static str,
}

/// 0 is none.
static NEXT: AtomicI64 = AtomicI64::new(1);

pub static VOLUMES: Registry<Volume> = Registry::new("the connection");
pub static FILES: Registry<File> = Registry::new("the file");

impl<T> Registry<T> {
    const fn new(kind: &'static str) -> Self {
        Self { items: RwLock::new(BTreeMap::new()), kind }
    }
    pub(crate) fn add(&self, volume: i64, value: T) -> i64 {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.items.write().unwrap_or_else(PoisonError::into_inner).insert(number, (volume, Arc::new(value)));
        number
    }
    pub(crate) fn get(&self, number: i64) -> Result<Arc<T>> {
        let items = self.items.read().unwrap_or_else(PoisonError::into_inner);
        items.get(&number).map(|(_, value)| value.clone()).ok_or_else(|| self.closed())
    }
    /// Forgets one. Calls that are under way keep it until they end.
    pub(crate) fn remove(&self, number: i64) -> Result<Arc<T>> {
        let removed = self.items.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        removed.map(|(_, value)| value).ok_or_else(|| self.closed())
    }
    /// Forgets all of a volume.
    pub(crate) fn remove_of(&self, volume: i64) -> Vec<Arc<T>> {
        let mut items = self.items.write().unwrap_or_else(PoisonError::into_inner);
        let numbers: Vec<i64> = items.iter().filter(|(_, (of, _))| *of == volume).map(|(number, _)| *number).collect();
        numbers.iter().filter_map(|number| items.remove(number)).map(|(_, value)| value).collect()
    }
    fn closed(&self) -> Error {
        Error {
            errno: libc::EBADF,
            what: self.kind.into(),
            cause: "it was closed".into(),
            next_step: "open it again".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that reads while another one closes would read memory of something else, or the file that got the
    /// number next.
    #[test]
    fn a_number_is_never_given_twice() {
        static NAMES: Registry<&str> = Registry::new("the name");
        let first = NAMES.add(7, "a");
        let (second, other) = (NAMES.add(7, "b"), NAMES.add(8, "c"));
        let held = NAMES.get(first).expect("it is there");
        assert_eq!(NAMES.remove(first).as_deref(), Ok(&"a"));
        assert_eq!(*held, "a", "whoever uses it keeps it");
        let error = NAMES.get(first).expect_err("it was given back");
        assert_eq!((error.errno, error.to_string().as_str()), (libc::EBADF, "the name: it was closed; open it again"));
        assert!(NAMES.remove(first).is_err() && NAMES.add(7, "d") > other);
        let left = NAMES.remove_of(7);
        assert_eq!(left.iter().map(|name| **name).collect::<Vec<_>>(), ["b", "d"]);
        assert!(NAMES.get(second).is_err() && NAMES.get(other).is_ok());
    }
}
