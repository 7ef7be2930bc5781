//! A chunk that is made again under the number of one that was deleted since the last start, as where a member leaves
//! a group and comes back.

use cairn_sim::{CrashPolicy, SimDisk};
use cairn_types::{CHUNK_SIZE_MAX, SessionId};

use super::model::{PARITY, append, append_op, id, open, outcome, read, slot};
use crate::disk::{AppendOp, DataError, DiskStore};

/// What is done.
#[derive(Debug, Clone, Copy)]
struct Plan {
    index: u32,
    /// Bytes of the first and of the second one: through the journal, or past it.
    bytes: [usize; 2],
    /// The second one has another header.
    other_session: bool,
    /// What is known of the first one goes home before its end.
    home: bool,
}

/// How far it came.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Reached {
    #[default]
    Nothing,
    Deleted,
    MadeAgain,
    Sealed,
}

fn content(round: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8 ^ round.wrapping_mul(0x5b)).collect()
}

impl Plan {
    fn op(&self, round: u8) -> AppendOp {
        let mut op = append_op(id(self.index), 0, &content(round, self.bytes[usize::from(round)]), true);
        if self.other_session && round == 1 {
            op.create.session = SessionId(8);
        }
        op
    }

    fn run(&self, store: &DiskStore, reached: &mut Reached) -> Result<(), DataError> {
        let chunk = id(self.index);
        let seal = || {
            let (slot, done) = slot();
            store.seal(chunk, done)?;
            outcome(store, &slot).map(drop)
        };
        append(store, self.op(0))?;
        seal()?;
        if self.home {
            store.checkpoint();
        }
        let (freed, done) = slot();
        store.punch(chunk, vec![(0, CHUNK_SIZE_MAX)], done)?;
        outcome(store, &freed)?;
        *reached = Reached::Deleted;
        append(store, self.op(1))?;
        *reached = Reached::MadeAgain;
        seal()?;
        *reached = Reached::Sealed;
        Ok(())
    }

    fn check(&self, store: &DiskStore, reached: Reached, what: &str) {
        let chunk = id(self.index);
        let Some(info) = store.info(chunk) else {
            assert!(reached < Reached::MadeAgain, "{what}: it is gone");
            return;
        };
        if reached < Reached::Deleted {
            // One of the two is there, or a part of it.
            return;
        }
        let wanted = content(1, self.bytes[1]);
        assert!(info.length <= wanted.len() as u64, "{what}: {} bytes are there", info.length);
        assert!(reached < Reached::MadeAgain || info.length == wanted.len() as u64, "{what}: {} bytes", info.length);
        assert!(reached < Reached::Sealed || info.sealed, "{what}");
        let found = read(store, chunk, 0, info.length).expect("readable");
        assert_eq!(found.data[..info.length as usize], wanted[..info.length as usize], "{what}");
        assert!(store.bad_blocks.lock().is_empty() && store.lost.lock().is_empty(), "{what}: something is healed");
    }
}

/// What was acknowledged of the second one would be lost with the first one, or the first one be taken for it.
#[test]
fn a_chunk_that_is_made_again_under_its_number_stays() {
    let (small, bulk) = (9_000, 70_000);
    let (mut crashes, mut after) = (0, 0);
    for index in [1, PARITY + 1] {
        for bytes in [[bulk, small], [small, bulk], [bulk, bulk - 5_000], [small, small / 2]] {
            for flags in 0..4 {
                let plan = Plan { index, bytes, other_session: flags & 1 == 1, home: flags & 2 == 2 };
                for n in 1.. {
                    let policies = [CrashPolicy::random(), CrashPolicy::harsh(), CrashPolicy::random()];
                    let mut crashed = true;
                    for (seed, policy) in policies.into_iter().enumerate() {
                        let disk = SimDisk::new(seed as u64 + 10 * n);
                        let store = open(&disk).expect("an empty disk");
                        disk.crash_at_op(disk.ops() + n);
                        let mut reached = Reached::default();
                        let _refused = plan.run(&store, &mut reached);
                        crashed &= disk.is_down();
                        drop(store);
                        disk.crash(policy);
                        for start in 0..2 {
                            let what = format!("{plan:?}, {reached:?}, crash at {n}, {policy:?}, start {start}");
                            let store = open(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
                            plan.check(&store, reached, &what);
                            drop(store);
                            disk.kill();
                        }
                        after += u64::from(reached >= Reached::MadeAgain);
                    }
                    if !crashed {
                        break;
                    }
                    crashes += 1;
                }
            }
        }
    }
    println!("{crashes} crashes, {after} behind what was acknowledged");
    assert!(crashes > 500 && after > 100, "{crashes}, {after}");
}
