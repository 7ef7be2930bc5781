//! Some chunks of one member brought at the same time: a chunk is asked for, waits for the network and for disks, and
//! is written, piece by piece, so one alone uses little of what there is.

use std::future::Future;

use cairn_types::ChunkId;
use cairn_wire::error::WireError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Inner;
use super::catch_up::Waits;
use super::member::Member;

impl Inner {
    /// Brings these, each of which says whether it was the same before. `None`: the epoch moved on.
    pub(super) async fn bring_several<F>(
        &self,
        member: &Member,
        brings: impl Iterator<Item = F>,
        waits: &mut Waits,
    ) -> Result<Option<bool>, WireError>
    where
        F: Future<Output = (ChunkId, Result<bool, WireError>)>,
    {
        let mut same = true;
        let take = |(id, outcome): (ChunkId, Result<bool, WireError>)| match outcome {
            Ok(was_same) => {
                same &= was_same;
                Ok(())
            }
            Err(error) => waits.note(id, error),
        };
        let at_most = self.config.catch_up_chunks.max(1);
        some_at_a_time(at_most, brings.take_while(|_| self.is_current(member)), take).await?;
        Ok(self.is_current(member).then_some(same))
    }
}

/// Awaits all of them, so many at a time. After an error of `take` none is begun any more; what was begun is awaited
/// all the same, so nothing is left of it that others could meet.
async fn some_at_a_time<F: Future, E>(
    at_most: usize,
    all: impl Iterator<Item = F>,
    mut take: impl FnMut(F::Output) -> Result<(), E>,
) -> Result<(), E> {
    let (mut all, mut under_way, mut outcome) = (all.fuse(), FuturesUnordered::new(), Ok(()));
    loop {
        while outcome.is_ok() && under_way.len() < at_most {
            let Some(next) = all.next() else { break };
            under_way.push(next);
        }
        let Some(done) = under_way.next().await else { return outcome };
        let taken = take(done);
        outcome = outcome.and(taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A pass would be as slow as one chunk after the other, hold too much at once, or leave copies under way behind
    /// it.
    #[test]
    fn some_are_under_way_and_all_that_began_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (now, most, ended) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let one = |number: usize| {
            let (now, most, ended) = (&now, &most, &ended);
            async move {
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                tokio::task::yield_now().await;
                now.set(now.get() - 1);
                ended.set(ended.get() + 1);
                number
            }
        };
        let all = some_at_a_time(4, (0..100).map(one), |_| Ok::<_, ()>(()));
        assert_eq!((runtime.block_on(all), most.get(), ended.get()), (Ok(()), 4, 100));
        ended.set(0);
        let failing = |number| if number == 10 { Err(number) } else { Ok(()) };
        let all = some_at_a_time(4, (0..100).map(one), failing);
        assert_eq!(runtime.block_on(all), Err(10));
        assert_eq!(now.get(), 0, "nothing is left under way");
        assert!((11..=14).contains(&ended.get()), "and no further one was begun: {}", ended.get());
    }
}
