//! Bytes that were written to a handle and are not yet in the file: runs that neither overlap nor touch.
use cairn_env::buf::SharedBuf;
use std::collections::BTreeMap;

/// By file offset.
#[derive(Default, Debug)]
pub(crate) struct Dirty {
    runs: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Dirty {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
    /// End of the last run; 0 if there is none.
    pub(crate) fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(offset, run)| offset + run.len() as u64)
    }
    /// Later bytes cover earlier ones.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        let before = self.runs.range(..=offset).next_back().filter(|(at, run)| **at + run.len() as u64 >= offset);
        let start = before.map_or(offset, |(at, _)| *at);
        let mut merged = self.runs.remove(&start).unwrap_or_default();
        self.bytes -= merged.len();
        let from = (offset - start) as usize;
        let covered = (merged.len() - from).min(data.len());
        merged[from..from + covered].copy_from_slice(&data[..covered]);
        merged.extend_from_slice(&data[covered..]);
        while let Some((at, run)) = self.runs.range(start..=end).next().map(|(at, run)| (*at, run.len())) {
            let later = self.runs.remove(&at).unwrap_or_default();
            self.bytes -= run;
            let known = start + merged.len() as u64 - at;
            merged.extend_from_slice(later.get(known as usize..).unwrap_or_default());
        }
        self.bytes += merged.len();
        self.runs.insert(start, merged);
    }
    /// Puts what lies in the range over `buffer`, which begins at file offset `from`.
    pub(crate) fn overlay(&self, from: u64, buffer: &mut [u8]) {
        let to = from + buffer.len() as u64;
        for (at, run) in self.runs.range(..to) {
            let end = at + run.len() as u64;
            if end <= from {
                continue;
            }
            let (start, end) = ((*at).max(from), end.min(to));
            let source = &run[(start - at) as usize..(end - at) as usize];
            buffer[(start - from) as usize..(end - from) as usize].copy_from_slice(source);
        }
    }
    /// Forgets what lies at `size` and beyond.
    pub(crate) fn truncate(&mut self, size: u64) {
        let beyond = self.runs.split_off(&size);
        self.bytes -= beyond.values().map(Vec::len).sum::<usize>();
        if let Some((at, run)) = self.runs.iter_mut().next_back() {
            let keep = ((size - at) as usize).min(run.len());
            self.bytes -= run.len() - keep;
            run.truncate(keep);
        }
    }
    /// Takes all runs out.
    pub(crate) fn take(&mut self) -> Vec<(u64, SharedBuf)> {
        self.bytes = 0;
        std::mem::take(&mut self.runs).into_iter().map(|(at, run)| (at, SharedBuf::from_owner(run))).collect()
    }
    /// Puts runs back that could not be written, below what was written since.
    pub(crate) fn put_back(&mut self, runs: &[(u64, SharedBuf)]) {
        let newer = std::mem::take(self);
        for (at, run) in runs {
            self.write(*at, run);
        }
        for (at, run) in newer.runs {
            self.write(at, &run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A reader of the handle, or the file, would get other bytes than those written last.
        #[test]
        fn runs_are_what_was_written_last(
            writes in prop::collection::vec((0u64..200, 0usize..60, any::<u8>()), 1..40),
            cut in 0u64..250,
        ) {
            let mut dirty = Dirty::default();
            let mut model = vec![None; 300];
            for (offset, length, byte) in writes {
                dirty.write(offset, &vec![byte; length]);
                model[offset as usize..offset as usize + length].fill(Some(byte));
            }
            dirty.truncate(cut);
            model[cut as usize..].fill(None);
            let mut seen = vec![0u8; 300];
            dirty.overlay(0, &mut seen);
            let want: Vec<u8> = model.iter().map(|b| b.unwrap_or(0)).collect();
            prop_assert_eq!(&seen[..], &want[..]);
            prop_assert_eq!(dirty.bytes(), model.iter().flatten().count());
            let runs = dirty.take();
            prop_assert!(runs.windows(2).all(|w| w[0].0 + (w[0].1.len() as u64) < w[1].0));
            prop_assert!(runs.iter().all(|(_, run)| !run.is_empty()) && dirty.is_empty());
            dirty.write(10, &[77; 5]);
            dirty.put_back(&runs);
            dirty.overlay(0, &mut seen);
            prop_assert_eq!(&seen[10..15], &[77; 5]);
            prop_assert_eq!(&seen[15..], &want[15..]);
        }
    }
}
