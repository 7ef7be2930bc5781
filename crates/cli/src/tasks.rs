//! [`Tasks`]: what a command has under way beside itself, so that all of it can be ended at once. A writer that is
//! ended frees what it wrote.
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Tasks of one command. Their number is bounded by whoever starts them.
#[derive(Clone, Default)]
pub struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl Tasks {
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        // Those that are done are forgotten.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }
    /// Ends all of them where they wait, and waits until they are gone.
    pub async fn end(&self) {
        let mut tasks = std::mem::take(&mut *self.0.lock());
        tasks.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a task holds would stay held after a signal, and what it wrote not be freed.
    #[tokio::test]
    async fn ended_tasks_have_dropped_what_they_had() {
        let (tasks, held) = (Tasks::default(), Arc::new(()));
        for _ in 0..3 {
            let mine = held.clone();
            tasks.spawn(async move {
                std::future::pending::<()>().await;
                drop(mine);
            });
        }
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&held), 4);
        tasks.end().await;
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
