//! The open append of a file's lane: found, or made if there is none. One writer of this client looks for all of them.
//!
//! Invariant: what is made follows the last one of the lane, so two successors cannot arise; the metadata sees to that.
use super::chunk::{AppendChunk, explain};
use super::settle::Settles;
use super::task::{ATTEMPTS_MAX, PAUSE};
use crate::append::open::{Avoided, open_index};
use crate::append::target::Target;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_types::{ErrorCode, Layout, PgId};
use cairn_wire::meta::OpenAppendRequest;
use std::sync::Arc;
use std::time::Duration;

/// Whether one that was not used for a while is still open is looked at so often.
const LOOK_APART: Duration = Duration::from_secs(1);

/// The lane's append behind number `left`, and whether it was made here.
pub(super) async fn find_or_open(
    volume: &Volume,
    (inode, path): (u64, &[u8]),
    (lane, left): (u32, u64),
    (layout, avoided): (Layout, &Arc<Avoided>),
) -> Result<(AppendChunk, bool)> {
    let (cluster, what) = (volume.cluster().clone(), String::from_utf8_lossy(path).into_owned());
    let known = cluster.shared.of::<Settles>().open(volume.id(), inode, lane);
    let mut known = known.lock().await;
    if let Some((Some(chunk), at)) = *known
        && chunk.number > left
        && cluster.clock.now().since(at) < PAUSE
    {
        return Ok((chunk, false));
    }
    let mut tries = 0;
    loop {
        let found = volume.last_append(inode, path, lane).await.map_err(|error| explain(error, &what))?;
        let last = found.append.unwrap_or_default();
        if last.open {
            let chunk = AppendChunk::of(inode, &last);
            *known = Some((Some(chunk), cluster.clock.now()));
            return Ok((chunk, false));
        }
        let session = volume.caller().writer_session().await?.id;
        // On other disks than the other lanes, as far as there are.
        let now = cluster.clock.now();
        let others = found.open_pgs.iter().filter(|_| lane > 0);
        others.for_each(|pg| avoided.add(PgId(*pg), now, false));
        let target = Target { volume: volume.id(), class: layout.pg_class().short(), session };
        let opened = open_index(&cluster, target, avoided).await?;
        let request = OpenAppendRequest {
            after: last.number,
            pg: opened.pg.id.0,
            index: opened.index,
            creation_epoch: opened.creation_epoch,
            lane,
            ..OpenAppendRequest::default()
        };
        match volume.open_append(inode, path, request).await {
            Ok(answer) => {
                let append = answer.append.ok_or_else(|| ClientError::protocol(&what, "the answer has no append"))?;
                let chunk = AppendChunk::of(inode, &append);
                *known = Some((Some(chunk), cluster.clock.now()));
                return Ok((chunk, true));
            }
            Err(error) if error.code() == Some(ErrorCode::Conflict) && tries < ATTEMPTS_MAX => tries += 1,
            Err(error) => return Err(explain(error, &what)),
        }
    }
}

/// It is closed: who comes next need not find that out as well.
pub(super) async fn forget_open(volume: &Volume, inode: u64, lane: u32, closed: AppendChunk) {
    let known = volume.cluster().shared.of::<Settles>().open(volume.id(), inode, lane);
    let mut known = known.lock().await;
    if known.is_some_and(|(chunk, _)| chunk.is_some_and(|chunk| chunk.number <= closed.number)) {
        *known = None;
    }
}

/// Whether one that was not used for a while takes more.
pub(super) async fn is_still_open(
    volume: &Volume,
    (inode, path): (u64, &[u8]),
    lane: u32,
    chunk: AppendChunk,
) -> Result<bool> {
    let clock = &volume.cluster().clock;
    let known = volume.cluster().shared.of::<Settles>().open(volume.id(), inode, lane);
    let mut known = known.lock().await;
    Ok(match *known {
        Some((Some(last), _)) if last.number > chunk.number => false,
        Some((Some(last), at)) if last.number == chunk.number && clock.now().since(at) < LOOK_APART => true,
        _ => {
            let found = volume.get_append(inode, path, chunk.number).await?.append.unwrap_or_default();
            *known = Some((Some(chunk).filter(|_| found.open), clock.now()));
            found.open
        }
    })
}
