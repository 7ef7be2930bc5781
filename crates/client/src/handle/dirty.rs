//! Bytes that were written and are not yet in the file: parts that do not overlap, by file offset.
//!
//! Large writes are kept as they came, small ones are copied once, next to each other into one buffer. Invariant:
//! `bytes` is what the parts hold.
use cairn_env::buf::SharedBuf;
use std::collections::BTreeMap;

/// Writes shorter than this are copied, so that they do not keep the caller's buffer.
const COPY_BELOW: usize = 64 << 10;
/// What is left of a part that is cut is copied if it is shorter than this: it would keep all of the buffer that it is
/// a part of.
const REMNANT_MAX: usize = 256 << 10;
/// Largest buffer that small writes are gathered in.
const OWN_MAX: usize = 1 << 20;

/// By file offset.
#[derive(Default, Debug)]
pub(crate) struct Dirty {
    parts: BTreeMap<u64, Part>,
    bytes: usize,
}

#[derive(Debug)]
enum Part {
    Shared(SharedBuf),
    Own(Vec<u8>),
}

/// Bytes that follow each other in the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub offset: u64,
    pub parts: Vec<SharedBuf>,
}

impl Run {
    pub(crate) fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len()
    }
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Shared(data) => data.len(),
            Self::Own(data) => data.len(),
        }
    }
    fn shared(self) -> SharedBuf {
        match self {
            Self::Shared(data) => data,
            Self::Own(data) => SharedBuf::from_owner(data),
        }
    }
    fn slice(&self, from: usize, to: usize) -> SharedBuf {
        match self {
            Self::Shared(data) => data.slice(from..to),
            Self::Own(data) => SharedBuf::from_owner(data[from..to].to_vec()),
        }
    }
}

/// What is left of a part, without the memory of the rest.
fn remnant(data: SharedBuf) -> Part {
    if data.len() < REMNANT_MAX { Part::Shared(SharedBuf::from_owner(data.to_vec())) } else { Part::Shared(data) }
}

impl Dirty {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
    /// End of the last part; 0 if there is none.
    pub(crate) fn end(&self) -> u64 {
        self.parts.last_key_value().map_or(0, |(at, part)| at + part.len() as u64)
    }
    /// Later bytes cover earlier ones.
    pub(crate) fn write(&mut self, offset: u64, data: SharedBuf) {
        if data.is_empty() {
            return;
        }
        if data.len() >= COPY_BELOW {
            self.cut(offset, offset + data.len() as u64);
            return self.insert(offset, Part::Shared(data));
        }
        let before = self.parts.range(..=offset).next_back();
        let gathers = before.is_some_and(|(at, part)| {
            let into = (offset - at) as usize;
            matches!(part, Part::Own(own) if into <= own.len() && into + data.len() <= OWN_MAX)
        });
        let at = before.map_or(offset, |(at, _)| *at);
        if !gathers {
            self.cut(offset, offset + data.len() as u64);
            return self.insert(offset, Part::Own(data.to_vec()));
        }
        let Some(Part::Own(mut own)) = self.parts.remove(&at) else { return };
        let known = own.len();
        let into = (offset - at) as usize;
        let covered = (known - into).min(data.len());
        own[into..into + covered].copy_from_slice(&data[..covered]);
        self.cut(at + known as u64, offset + data.len() as u64);
        own.extend_from_slice(&data[covered..]);
        self.bytes += own.len() - known;
        self.parts.insert(at, Part::Own(own));
    }
    fn insert(&mut self, at: u64, part: Part) {
        self.bytes += part.len();
        self.parts.insert(at, part);
    }
    /// Forgets what lies in `from..to`.
    pub(crate) fn cut(&mut self, from: u64, to: u64) {
        self.take_range(from, to);
    }
    /// Takes `from..to` out; what is taken is never changed.
    pub(crate) fn take_range(&mut self, from: u64, to: u64) -> Dirty {
        let mut taken = Dirty::default();
        let touched: Vec<u64> = self.overlapping(from, to).map(|(at, _)| at).collect();
        for at in touched {
            let Some(part) = self.parts.remove(&at) else { continue };
            self.bytes -= part.len();
            let data = part.shared();
            let end = at + data.len() as u64;
            let (start, stop) = (at.max(from), end.min(to));
            taken.insert(start, Part::Shared(data.slice((start - at) as usize..(stop - at) as usize)));
            if at < from {
                self.insert(at, remnant(data.slice(..(from - at) as usize)));
            }
            if end > to {
                self.insert(to, remnant(data.slice((to - at) as usize..)));
            }
        }
        taken
    }
    /// Forgets what lies at `size` and beyond.
    pub(crate) fn truncate(&mut self, size: u64) {
        self.cut(size, u64::MAX);
    }
    /// Puts bytes only where nothing is yet: below what is here.
    pub(crate) fn fill(&mut self, offset: u64, data: &SharedBuf) {
        for (from, to) in self.gaps(offset, offset + data.len() as u64) {
            let part = data.slice((from - offset) as usize..(to - offset) as usize);
            self.insert(from, Part::Shared(part));
        }
    }
    /// Parts of `from..to` where nothing is.
    pub(crate) fn gaps(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = from;
        for (start, part) in self.overlapping(from, to) {
            if start > at {
                gaps.push((at, start));
            }
            at = at.max(start + part.len() as u64);
        }
        if at < to {
            gaps.push((at, to));
        }
        gaps
    }
    fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, &Part)> {
        let before = self.parts.range(..from).next_back().filter(|(at, part)| *at + part.len() as u64 > from);
        let first = if from < to { before.map_or(from, |(at, _)| *at) } else { to };
        self.parts.range(first..to.max(first)).map(|(at, part)| (*at, part))
    }
    /// What lies in `from..to`, in order.
    pub(crate) fn pieces(&self, from: u64, to: u64) -> Vec<(u64, SharedBuf)> {
        let piece = |(at, part): (u64, &Part)| {
            let (start, end) = (at.max(from), (at + part.len() as u64).min(to));
            (start, part.slice((start - at) as usize, (end - at) as usize))
        };
        self.overlapping(from, to).map(piece).collect()
    }
    /// Whether something lies in `from..to`.
    pub(crate) fn overlaps(&self, from: u64, to: u64) -> bool {
        self.overlapping(from, to).next().is_some()
    }
    /// Begin and end of the first part that ends behind that byte.
    pub(crate) fn next_part(&self, at: u64) -> Option<(u64, u64)> {
        self.overlapping(at, u64::MAX).next().map(|(begin, part)| (begin, begin + part.len() as u64))
    }
    /// Whether all of `from..to` is here, and nothing right behind it.
    pub(crate) fn ends_with(&self, from: u64, to: u64) -> bool {
        self.gaps(from, to).is_empty() && !self.overlaps(to, to.saturating_add(1))
    }
    /// The end of the part that has the byte before `at`: a part is one write or several whole ones, wherever none was
    /// cut.
    pub(crate) fn part_end(&self, at: u64) -> u64 {
        let part = self.parts.range(..at).next_back();
        part.map_or(at, |(begin, part)| (begin + part.len() as u64).max(at))
    }
    /// Where something is: begin and end of each run.
    pub(crate) fn spans(&self) -> Vec<(u64, u64)> {
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for (at, part) in &self.parts {
            let end = at + part.len() as u64;
            match spans.last_mut() {
                Some(span) if span.1 == *at => span.1 = end,
                _ => spans.push((*at, end)),
            }
        }
        spans
    }
    /// What is here as runs: parts that follow each other are one.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut end = None;
        for (at, part) in &self.parts {
            let data = part.slice(0, part.len());
            let next = at + data.len() as u64;
            match runs.last_mut() {
                Some(run) if end == Some(*at) => run.parts.push(data),
                _ => runs.push(Run { offset: *at, parts: vec![data] }),
            }
            end = Some(next);
        }
        runs
    }
    /// Takes at most so many runs and about so many bytes out, from the lowest offset on; what is taken is never
    /// changed.
    pub(crate) fn take(&mut self, runs_max: usize, bytes_max: usize) -> Dirty {
        let mut taken = Dirty::default();
        let (mut runs, mut end) = (0, None);
        while let Some((at, part)) = self.parts.pop_first() {
            let next_run = end != Some(at);
            if taken.bytes >= bytes_max || next_run && runs == runs_max {
                self.parts.insert(at, part);
                break;
            }
            runs += usize::from(next_run);
            end = Some(at + part.len() as u64);
            self.bytes -= part.len();
            taken.insert(at, Part::Shared(part.shared()));
        }
        taken
    }
    /// Puts back what could not be written, below what was written since.
    pub(crate) fn put_back(&mut self, older: &Dirty) {
        for (at, data) in older.pieces(0, u64::MAX) {
            self.fill(at, &data);
        }
    }
    /// The same bytes, those from `from` on at `to` and behind; what else lies there gives way.
    pub(crate) fn shift(&mut self, from: u64, to: u64) {
        let moved = self.take_range(from, u64::MAX);
        for (at, data) in moved.pieces(0, u64::MAX) {
            let at = at - from + to;
            self.cut(at, at + data.len() as u64);
            self.insert(at, Part::Shared(data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn buf(bytes: &[u8]) -> SharedBuf {
        SharedBuf::from_owner(bytes.to_vec())
    }
    fn flat(dirty: &Dirty, size: usize) -> Vec<Option<u8>> {
        let mut bytes = vec![None; size];
        for (at, data) in dirty.pieces(0, u64::MAX) {
            data.iter().enumerate().for_each(|(i, byte)| bytes[at as usize + i] = Some(*byte));
        }
        bytes
    }

    proptest! {
        /// A file would get other bytes than were written, or the memory of a mount would be miscounted.
        #[test]
        fn parts_hold_what_was_written_last(
            steps in prop::collection::vec((0u8..5, 0usize..300_000, 1usize..150_000, any::<u8>()), 1..30)
        ) {
            const SIZE: usize = 500_000;
            let mut dirty = Dirty::default();
            let mut model: Vec<Option<u8>> = vec![None; SIZE];
            for (what, offset, length, fill) in steps {
                let length = if what == 0 { length.min(5000) } else { length };
                let range = offset..offset + length;
                match what {
                    0 | 1 => {
                        dirty.write(offset as u64, buf(&vec![fill; length]));
                        model[range].fill(Some(fill));
                    }
                    2 => {
                        dirty.cut(range.start as u64, range.end as u64);
                        model[range].fill(None);
                    }
                    3 => {
                        dirty.fill(offset as u64, &buf(&vec![fill; length]));
                        model[range].iter_mut().filter(|b| b.is_none()).for_each(|b| *b = Some(fill));
                    }
                    _ => {
                        let taken = dirty.take_range(range.start as u64, range.end as u64);
                        dirty.put_back(&taken);
                    }
                }
                prop_assert_eq!(dirty.bytes(), model.iter().filter(|b| b.is_some()).count());
            }
            prop_assert!(flat(&dirty, SIZE) == model);
            let all: u64 = dirty.runs().iter().map(Run::len).sum();
            prop_assert_eq!(all as usize, dirty.bytes());
            let spans: Vec<_> = dirty.runs().iter().map(|run| (run.offset, run.end())).collect();
            prop_assert_eq!(spans, dirty.spans());
            let mut rest = Dirty::default();
            while !dirty.is_empty() {
                let taken = dirty.take(2, 100_000);
                prop_assert!(taken.runs().len() <= 2 && taken.bytes() > 0);
                rest.put_back(&taken);
            }
            prop_assert!(flat(&rest, SIZE) == model);
        }
    }

    /// A mount would hold megabytes for a few bytes that were not written over yet.
    #[test]
    fn what_is_written_over_is_not_kept() {
        struct Counted(Vec<u8>, std::sync::Arc<()>);
        impl AsRef<[u8]> for Counted {
            fn as_ref(&self) -> &[u8] {
                assert!(std::sync::Arc::strong_count(&self.1) > 1, "the test counts along");
                &self.0
            }
        }
        let alive = std::sync::Arc::new(());
        let mut dirty = Dirty::default();
        let large = 1 << 20;
        for i in 0..50u64 {
            // All but the first bytes of each are covered by the next one.
            dirty.write(i * 100, SharedBuf::from_owner(Counted(vec![i as u8; large], alive.clone())));
        }
        assert_eq!(dirty.bytes(), 49 * 100 + large);
        assert_eq!(std::sync::Arc::strong_count(&alive), 2, "buffers are kept for what is left of them");
        assert_eq!(
            flat(&dirty, 49 * 100 + large)[..4900],
            (0..49).flat_map(|i| [Some(i); 100]).collect::<Vec<_>>()[..]
        );
    }

    /// A program that writes a few bytes at a time would cost a buffer each.
    #[test]
    fn small_writes_gather_in_one_buffer() {
        let mut dirty = Dirty::default();
        (0..1000u64).for_each(|i| dirty.write(i * 100, buf(&[i as u8; 100])));
        assert_eq!((dirty.parts.len(), dirty.bytes(), dirty.end()), (1, 100_000, 100_000));
        dirty.shift(50_000, 50_007);
        assert_eq!(dirty.gaps(0, 100_007), [(50_000, 50_007)]);
        assert!(dirty.ends_with(0, 50_000) && dirty.ends_with(60_000, 100_007));
        assert!(!dirty.ends_with(0, 49_999) && !dirty.ends_with(0, 50_007) && !dirty.ends_with(50_000, 60_000));
        assert_eq!((dirty.part_end(1), dirty.part_end(50_000), dirty.part_end(50_008)), (50_000, 50_000, 100_007));
        dirty.truncate(10);
        assert_eq!((dirty.end(), dirty.bytes()), (10, 10));
    }
}
