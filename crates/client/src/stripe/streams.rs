//! The striped streams of a volume, shared by the files that are written at the same time.
use super::stream::{StripedHandle, WINDOW_BYTES, start};
use crate::append::target::Target;
use crate::cluster::Cluster;
use crate::error::Result;
use cairn_types::Stripe;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Streams of a volume for one scheme and stripe, each with its own open chunk.
const STREAMS_MAX: usize = 4;

/// By scheme code, stripe and session.
#[derive(Default)]
pub(crate) struct StripedStreams(Mutex<BTreeMap<(u8, Stripe, u64), Vec<StripedHandle>>>);

impl StripedStreams {
    /// The stream with the most room; up to [`STREAMS_MAX`] are started as they are needed.
    pub(crate) fn get(&self, cluster: &Arc<Cluster>, target: Target, stripe: Stripe) -> Result<StripedHandle> {
        let mut streams = self.0.lock();
        // Streams of ended sessions drain and end by themselves.
        streams.retain(|(_, _, owner), _| *owner == target.session.0);
        let list = streams.entry((target.class.scheme.code(), stripe, target.session.0)).or_default();
        list.retain(|s| !s.is_ended());
        let best = list.iter().max_by_key(|s| s.window.available_permits());
        let idle = best.is_some_and(|s| s.window.available_permits() * 1024 >= WINDOW_BYTES);
        if let Some(best) = best
            && (idle || list.len() >= STREAMS_MAX)
        {
            return Ok(best.clone());
        }
        let stream = start(cluster.clone(), target, stripe)?;
        list.push(stream.clone());
        Ok(stream)
    }
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
