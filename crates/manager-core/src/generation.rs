//! What the generation that a disk brings says, held against the one that the log knows: whether it is the disk of
//! before, an older copy of it, or whether the manager's state is the older one.
//!
//! Invariant: in doubt a disk counts as an older copy. That costs a comparison with the other members and nothing else.
use cairn_types::generation::{Generation, Lineage};

/// What a disk is, by its generations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Nothing was known of it.
    New,
    /// It went on from what is known.
    Follows,
    /// It is an older copy of itself, or one that went its own way: it may lack what it had acknowledged.
    Older,
    /// The log has forgotten what it once told the disk that it knows: the manager's state is an older copy of itself.
    ManagerIsOlder,
}

/// `known`: what the log has of the disk; `came`: what it tells. A rise that was not logged yet explains a higher
/// number under a nonce of the disk's last starts, and nothing else does.
pub fn standing(known: Option<Generation>, came: &Lineage) -> Standing {
    let Some(known) = known else { return Standing::New };
    let Some(first) = came.runs.first() else { return Standing::Older };
    let same = came.runs.iter().find(|run| run.nonce == known.nonce);
    let forgotten = known.number < came.confirmed;
    match same {
        Some(run) if known.number > run.number => Standing::Older,
        Some(_) if forgotten => Standing::ManagerIsOlder,
        Some(_) => Standing::Follows,
        // Of a start that the disk does not remember: so long ago, or of another copy of it.
        None if forgotten && known.number < first.number => Standing::ManagerIsOlder,
        None => Standing::Older,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64, nonce: u64) -> Generation {
        Generation { number, nonce }
    }

    fn lineage(runs: &[(u64, u64)], confirmed: u64) -> Lineage {
        Lineage { runs: runs.iter().map(|(number, nonce)| at(*number, *nonce)).collect(), confirmed }
    }

    /// An older copy of a disk would serve what it lacks, or a sound one be compared after each start.
    #[test]
    fn what_a_disk_is_by_its_generations() {
        use Standing::*;
        let disk = lineage(&[(10, 1), (20, 2), (21, 3)], 11);
        for (known, came, wanted) in [
            (None, &disk, New),
            (Some(at(20, 2)), &disk, Follows),
            (Some(at(15, 2)), &disk, Follows),
            (Some(at(21, 3)), &disk, Follows),
            (Some(at(22, 3)), &disk, Older),
            (Some(at(21, 2)), &disk, Older),
            (Some(at(21, 9)), &disk, Older),
            (Some(at(12, 9)), &disk, Older),
            (Some(at(9, 1)), &disk, ManagerIsOlder),
            (Some(at(3, 9)), &disk, ManagerIsOlder),
            (Some(at(3, 9)), &lineage(&[(10, 1)], 0), Older),
            (Some(at(1, 1)), &lineage(&[(1, 2)], 0), Older),
            (Some(at(1, 1)), &Lineage::default(), Older),
            (None, &Lineage::default(), New),
        ] {
            assert_eq!(standing(known, came), wanted, "{known:?} {came:?}");
        }
    }

    /// A disk whose server starts again and again without reaching a manager would count as an older copy.
    #[test]
    fn starts_that_were_not_logged_are_followed() {
        let mut disk = Lineage::default();
        disk.start(100);
        let known = disk.present();
        for nonce in 0..15 {
            disk.start(nonce);
            disk.rise();
            assert_eq!(standing(known, &disk), Standing::Follows);
        }
        disk.start(16);
        assert_eq!(standing(known, &disk), Standing::Older, "in doubt it is compared");
    }
}
