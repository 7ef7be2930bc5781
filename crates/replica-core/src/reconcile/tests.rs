//! What is decided for each purpose, row by row, and two properties over all that four members can say.

use super::*;

const NOW: Epoch = Epoch(7);
const ME: DiskId = DiskId(1);
const BLOCK: u64 = BLOCK_SIZE as u64;

/// So many blocks, of an earlier epoch.
fn sum(blocks: u64, sealed: bool) -> ChunkSum {
    ChunkSum {
        index: 4,
        length: blocks * BLOCK,
        durable: blocks * BLOCK,
        sealed,
        made: Epoch(3),
        session: SessionId(9),
        table_crc: 0,
        freed: 0,
        number: OverwriteNumber::NONE,
        follow: Default::default(),
    }
}

fn sealed(blocks: u64) -> Said {
    Said::Has(sum(blocks, true))
}

fn open(blocks: u64) -> Said {
    Said::Has(sum(blocks, false))
}

/// All of it was freed.
fn freed(blocks: u64) -> Said {
    Said::Has(ChunkSum { freed: blocks as u32, ..sum(blocks, true) })
}

/// Disks 1, 2, 3 …: the first one asks, and all of them serve.
fn judged(purpose: Purpose, k: Option<usize>, said: &[Said]) -> Verdict {
    judged_with(purpose, k, said, |_| {})
}

fn judged_with(purpose: Purpose, k: Option<usize>, said: &[Said], change: impl FnOnce(&mut Here<'_>)) -> Verdict {
    let members: Vec<DiskId> = (1..=said.len() as u32).map(DiskId).collect();
    let mut here = Here {
        me: ME,
        epoch: NOW,
        members: &members,
        serving: &members,
        k,
        skipped: OverwriteNumber::NONE,
        freed_up_to: 0,
        freeing: false,
    };
    change(&mut here);
    let witnesses: Vec<Witness> =
        members.iter().zip(said).map(|(disk, said)| Witness { disk: *disk, serves: true, said: *said }).collect();
    decide(purpose, &here, &witnesses)
}

fn steps(verdict: Verdict) -> Vec<Step> {
    match verdict {
        Verdict::Act(plan) => plan.steps,
        other => panic!("{other:?} is no plan"),
    }
}

fn extend(sources: &[(u32, u64)], target: u32, from: u64, to: u64) -> Step {
    let sources = sources.iter().map(|(disk, blocks)| (DiskId(*disk), blocks * BLOCK)).collect();
    Step::Extend { sources, target: DiskId(target), range: from * BLOCK..to * BLOCK }
}

fn seal(disk: u32) -> Step {
    Step::Seal { disk: DiskId(disk) }
}

/// The copy that is taken over whole, of these members in this order.
fn copy(of: &[u32]) -> Vec<Step> {
    let source = Source::Copy(of.iter().copied().map(DiskId).collect());
    vec![Step::Level { source, target: ME, how: How::Copy }]
}

/// Acknowledged bytes that only one member has would be lost when the chunk ends, or who lacks it would get it back.
#[test]
fn an_open_chunk_ends_at_the_longest() {
    let ends = |said: &[Said]| judged(Purpose::End, None, said);
    let longest = steps(ends(&[open(1), open(3), open(2)]));
    let sources = [(2, 3), (3, 2), (1, 1)];
    assert_eq!(longest, [extend(&sources, 1, 1, 3), extend(&sources, 3, 2, 3), seal(1), seal(2), seal(3)]);
    assert_eq!(steps(ends(&[open(2), Said::Lacks, open(2)])), [seal(1), seal(3)], "who lacks it does not get it");
    assert_eq!(steps(ends(&[sealed(1), open(2), sealed(2)])), [seal(2)], "who sealed it keeps its length");
    assert_eq!(ends(&[open(2), Said::Silent, open(2)]), Verdict::Wait, "who says nothing may have more");
    assert_eq!(ends(&[sealed(2), sealed(1), Said::Lacks]), Verdict::Same);
    assert_eq!(ends(&[Said::Lacks, Said::Lacks]), Verdict::Same);
}

/// What a member lost would not come back, come back behind a free, or be told as lost while somebody may have it.
#[test]
fn what_is_lacked_comes_back_from_the_longest_sealed_copy() {
    let lacks = |said: &[Said]| judged(Purpose::Restore, None, said);
    assert_eq!(steps(lacks(&[Said::Lacks, sealed(1), sealed(3)])), copy(&[3, 2]));
    assert_eq!(steps(lacks(&[Said::Lacks, Said::Silent, sealed(3)])), copy(&[3]), "one is enough");
    assert_eq!(lacks(&[Said::Lacks, open(5), Said::Lacks]), Verdict::Wait, "an open copy is no source");
    assert_eq!(lacks(&[Said::Lacks, Said::Silent, Said::Lacks]), Verdict::Wait, "who said nothing may have it");
    assert_eq!(lacks(&[Said::Lacks, Said::Lacks, Said::Lacks]), Verdict::Nowhere);
    assert_eq!(lacks(&[Said::Lacks, freed(2), Said::Lacks]), Verdict::Settled, "it was deleted");
    // It is here: another one is better only if it is longer.
    assert_eq!(lacks(&[sealed(2), sealed(2), sealed(1)]), Verdict::Settled);
    assert_eq!(steps(lacks(&[sealed(2), sealed(3), sealed(4)])), copy(&[3, 2]), "a shorter sealed one is lengthened");
    assert_eq!(steps(lacks(&[open(5), sealed(3), Said::Lacks])), copy(&[2]), "it is open, and others have ended it");
    assert_eq!(lacks(&[open(5), Said::Lacks, Said::Lacks]), Verdict::Wait, "it is about to end");
    // Frees of which the others are about to hear.
    let with = |said: &[Said], change: fn(&mut Here<'_>)| judged_with(Purpose::Restore, None, said, change);
    let here = [Said::Lacks, sealed(2), sealed(2)];
    assert_eq!(with(&here, |here| here.freed_up_to = 2 * BLOCK), Verdict::Settled);
    assert_eq!(steps(with(&here, |here| here.freed_up_to = BLOCK)), copy(&[3, 2]), "more was written since");
    assert_eq!(with(&here, |here| here.freeing = true), Verdict::Wait);
    // A group whose members are not all known to serve: somebody else may have it.
    const MORE: [DiskId; 4] = [ME, DiskId(2), DiskId(3), DiskId(4)];
    let verdict = judged_with(Purpose::Restore, None, &[Said::Lacks, Said::Lacks], |here| here.members = &MORE);
    assert_eq!(verdict, Verdict::Wait);
}

fn rebuild(from: u64, to: u64, others: u32, freed_at: &[u32]) -> Step {
    let shards = (2..=others + 1).map(|disk| (DiskId(disk), (disk - 1) as u8)).collect();
    let freed_at = freed_at.iter().copied().map(DiskId).collect();
    Step::Rebuild { source: Source::Rebuild { k: 2, shards }, range: from * BLOCK..to * BLOCK, freed_at }
}

/// A shard would be rebuilt from fewer than k, stay shorter than what was published, or be taken for lost.
#[test]
fn a_shard_is_rebuilt_up_to_what_k_have() {
    let lacks = |said: &[Said]| judged(Purpose::Shard, Some(2), said);
    // rs-2-2: this one and three others.
    assert_eq!(steps(lacks(&[Said::Lacks, sealed(3), sealed(2), sealed(1)])), [rebuild(0, 2, 3, &[])]);
    assert_eq!(steps(lacks(&[sealed(1), sealed(3), sealed(3), sealed(3)])), [rebuild(1, 3, 3, &[])]);
    assert_eq!(lacks(&[sealed(3), sealed(3), sealed(3), sealed(3)]), Verdict::Same);
    assert_eq!(lacks(&[Said::Lacks, sealed(3), Said::Silent, Said::Silent]), Verdict::Wait, "fewer than k said a word");
    assert_eq!(lacks(&[Said::Lacks, open(3), open(3), sealed(3)]), Verdict::Wait, "each ends its own first");
    assert_eq!(lacks(&[Said::Lacks, Said::Lacks, Said::Lacks, Said::Lacks]), Verdict::Nowhere);
    assert_eq!(lacks(&[Said::Lacks, Said::Lacks, Said::Lacks, Said::Silent]), Verdict::Same, "one alone makes nothing");
    assert_eq!(steps(lacks(&[open(2), sealed(2), sealed(2), sealed(2)])), [rebuild(2, 2, 3, &[])], "it is sealed");
    let told = [Said::Lacks, freed(2), sealed(2), sealed(2)];
    assert_eq!(steps(lacks(&told)), [rebuild(0, 2, 3, &[2])], "what one has freed is asked of nobody");
    // Another chunk has its number on one of them.
    let stranger = Said::Has(ChunkSum { session: SessionId(8), ..sum(2, true) });
    assert_eq!(lacks(&[Said::Lacks, sealed(2), sealed(2), stranger]), Verdict::Conflict);
    // Its writer is at work.
    let written = Said::Has(ChunkSum { made: NOW, ..sum(2, false) });
    assert_eq!(lacks(&[Said::Lacks, written, written, written]), Verdict::Arrives);
    // Power may take what is here.
    let shaky = Said::Has(ChunkSum { durable: 0, ..sum(1, true) });
    assert_eq!(steps(lacks(&[shaky, sealed(2), sealed(2), sealed(2)])), [Step::Durable, rebuild(1, 2, 3, &[])]);
    let whole = Said::Has(ChunkSum { durable: 0, ..sum(2, true) });
    assert_eq!(steps(lacks(&[whole, sealed(2), sealed(2), sealed(2)])), [Step::Durable], "nothing else is to be done");
    let freed_here = |blocks: u64| {
        let said = [Said::Lacks, sealed(2), sealed(2), sealed(2)];
        judged_with(Purpose::Shard, Some(2), &said, |here| here.freed_up_to = blocks * BLOCK)
    };
    assert_eq!((freed_here(2), steps(freed_here(1))), (Verdict::Settled, vec![rebuild(0, 2, 3, &[])]));
    let nowhere = judged_with(Purpose::Shard, Some(2), &[Said::Lacks; 4], |here| here.freed_up_to = BLOCK);
    assert_eq!(nowhere, Verdict::Settled, "it is not lost");
}

/// What only others have would not be looked for, or what is here as well, or what its writer is about to send.
#[test]
fn what_others_list_whole_and_more_of_is_lacked() {
    let less = |k: Option<usize>, entered: bool, own: Said, theirs: &[Said]| {
        is_less(k, (NOW, entered), own.has(), theirs.iter().filter_map(Said::has))
    };
    let copies = |own: Said, theirs: &[Said]| less(None, true, own, theirs);
    assert!(copies(Said::Lacks, &[sealed(1), open(3)]) && copies(sealed(1), &[sealed(2)]));
    assert!(!copies(sealed(2), &[sealed(2), sealed(1)]) && !copies(Said::Lacks, &[open(3), Said::Lacks]));
    assert!(!copies(Said::Lacks, &[freed(2), sealed(0)]), "nothing is left of it");
    assert!(copies(open(3), &[sealed(1)]), "its seal went past here");
    assert!(!less(None, false, open(3), &[sealed(1)]), "its leader is about to seal it");
    assert!(!copies(Said::Has(ChunkSum { made: NOW, ..sum(1, false) }), &[sealed(2)]), "its writer is at it");
    let shards = |own: Said, theirs: &[Said]| less(Some(2), true, own, theirs);
    assert!(shards(Said::Lacks, &[sealed(3), sealed(1)]) && !shards(Said::Lacks, &[sealed(3), open(3)]));
    assert!(shards(sealed(1), &[sealed(3), sealed(2)]) && !shards(sealed(2), &[sealed(3), sealed(2), sealed(1)]));
}

/// A plan that others could still change would be taken for the last word.
#[test]
fn a_plan_says_whether_who_was_silent_could_change_it() {
    let certain = |said: &[Said]| match judged(Purpose::Shard, Some(2), said) {
        Verdict::Act(plan) => plan.certain,
        other => panic!("{other:?}"),
    };
    assert!(certain(&[Said::Lacks, sealed(3), sealed(3), Said::Silent]));
    assert!(!certain(&[Said::Lacks, sealed(3), sealed(2), Said::Silent]), "it may have three, too");
    assert_eq!(judged(Purpose::Shard, Some(2), &[sealed(2), sealed(3), sealed(2), Said::Silent]), Verdict::Wait);
}

const ALL: [fn() -> Said; 8] = [
    || Said::Lacks,
    || Said::Silent,
    || sealed(0),
    || sealed(1),
    || sealed(3),
    || open(2),
    || freed(2),
    || Said::Has(ChunkSum { made: NOW, ..sum(2, false) }),
];

/// All that four members can say of these.
fn everything(mut each: impl FnMut(&[Said; 4])) {
    for number in 0..ALL.len().pow(4) {
        each(&[0, 1, 2, 3].map(|place| ALL[number / ALL.len().pow(place) % ALL.len()]()));
    }
}

const PURPOSES: [(Purpose, Option<usize>); 3] =
    [(Purpose::End, None), (Purpose::Restore, None), (Purpose::Shard, Some(2))];

/// Who was away and comes back with old bytes, or with none, would decide what those have who served all the time.
#[test]
fn who_does_not_serve_is_no_witness() {
    let members: Vec<DiskId> = (1..=4).map(DiskId).collect();
    let here = Here {
        me: ME,
        epoch: NOW,
        members: &members,
        serving: &members[..3],
        k: None,
        skipped: OverwriteNumber::NONE,
        freed_up_to: 0,
        freeing: false,
    };
    everything(|said| {
        for (purpose, k) in PURPOSES {
            let verdict = |last: Said| {
                let said = [said[0], said[1], said[2], last];
                let serves = |disk: DiskId| here.serving.contains(&disk);
                let witness = |(disk, said)| Witness { disk, serves: serves(disk), said };
                let all: Vec<Witness> = members.iter().copied().zip(said).map(witness).collect();
                decide(purpose, &Here { k, ..here }, &all)
            };
            assert_eq!(verdict(said[3]), verdict(Said::Lacks), "{purpose:?} of {said:?}");
        }
    });
}

/// What somebody has would be cut, or written over by what is shorter.
#[test]
fn no_plan_makes_anything_shorter() {
    everything(|said| {
        for (purpose, k) in PURPOSES {
            let Verdict::Act(plan) = judged(purpose, k, said) else { continue };
            let has = |disk: DiskId| said[disk.get() as usize - 1].has().map_or(0, |sum| sum.length);
            for step in &plan.steps {
                match step {
                    Step::Extend { target, range, sources } => {
                        assert!(range.start == has(*target) && range.end > range.start, "{said:?}: {step:?}");
                        assert_eq!(sources[0].1, range.end, "{said:?}: the first one has all of it");
                    }
                    Step::Rebuild { range, .. } => assert!(range.start == has(ME) && range.end >= has(ME), "{said:?}"),
                    Step::Level { source, target, .. } => {
                        let longest = source.first().map_or(0, has);
                        let here = said[0].has().filter(|sum| sum.sealed).map_or(0, |sum| sum.length);
                        assert!(*target == ME && (longest > here || here == 0), "{said:?}: {step:?}");
                    }
                    Step::Durable | Step::Number { .. } | Step::Seal { .. } | Step::InStep { .. } => {}
                }
            }
        }
    });
}
