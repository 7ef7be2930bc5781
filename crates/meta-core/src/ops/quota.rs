//! SetQuota, GetQuota, ListQuotas: limits of directories and of the volume, for root; anybody may look.
use crate::encoding::QuotaRecord;
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::lend::LEND_LEVEL;
use crate::limits::PAGE_ENTRIES_MAX;
use crate::message::request;
use crate::message::writer::{put_message, put_number};
use crate::namespace::{Context, Namespace};
use crate::parts_elsewhere::{LOOKS, Parts};
use cairn_types::ErrorCode;

const NO_QUOTA: OpError = OpError::new(ErrorCode::NoAttribute, "it has no quota of its own");
const OF_SHARDS: OpError = OpError::new(
    ErrorCode::NotSupported,
    "a sharded directory has its names in several partitions, and a quota counts those of one; limit the volume (cairn fs quota set \
     --volume) or a directory in it",
);
const OF_SEVERAL: OpError = OpError::new(
    ErrorCode::NotSupported,
    "the volume has several meta partitions, over which a limit of all of it is counted from feature level 7 of all members on: upgrade the \
     meta nodes (or take node.feature_level_max out of their configuration), or set quotas of directories",
);

impl Namespace {
    pub(crate) fn set_quota(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::SetQuota::decode(bytes)?;
        if !context.who.is_root() {
            return Err(OpError::NOT_ROOT);
        }
        let has_limit = request.bytes_max > 0 || request.inodes_max > 0;
        if has_limit == request.remove {
            return Err(OpError::new(ErrorCode::InvalidArgument, "a quota has a limit, or is removed"));
        }
        if request.inode == 0 {
            if !self.is_home() {
                return Err(OpError::ELSEWHERE);
            }
            if has_limit && self.is_one_of_several() && self.level < LEND_LEVEL {
                return Err(OF_SEVERAL);
            }
            let had_one = self.has_volume_limit();
            let limits = has_limit.then_some((request.bytes_max, request.inodes_max));
            self.set_volume_quota(limits);
            self.limit_changed(had_one);
            return Ok(());
        }
        let mut directory = self.directory(request.inode)?;
        if request.remove {
            if directory.quota != request.inode {
                return Err(NO_QUOTA);
            }
            self.check_not_counting()?;
            self.remove_directory_quota(request.inode, &mut directory);
        } else {
            if directory.shards > 0 || directory.is_shard {
                return Err(OF_SHARDS);
            }
            if directory.quota != request.inode {
                self.check_not_counting()?;
            }
            self.set_directory_quota(request.inode, &mut directory, request.bytes_max, request.inodes_max);
        }
        directory.touch(context.now);
        self.put_inode(request.inode, &directory);
        Ok(())
    }

    pub(crate) fn get_quota(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::GetQuota::decode(bytes)?;
        let record = match request.inode {
            0 => self.volume_quota(),
            id => {
                self.live_inode(id)?;
                self.quota_record(id)?.filter(|record| !record.removed)
            }
        };
        let mut looks = LOOKS;
        self.answer_quota(request.inode, &record.ok_or(NO_QUOTA)?, &mut looks, out)
    }

    pub(crate) fn list_quotas(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::ListQuotas::decode(bytes)?;
        let max = match request.count_max {
            0 => PAGE_ENTRIES_MAX,
            count => count.min(PAGE_ENTRIES_MAX),
        };
        let (mut count, mut looks) = (0, LOOKS);
        if let Some(volume) = self.volume_quota().filter(|_| !request.resume) {
            self.answer_quota(0, &volume, &mut looks, out)?;
            count += 1;
        }
        let prefix = key::prefix(0, Kind::Quota);
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(key::quota(request.after.saturating_add(1)).as_bytes());
        while found {
            let Some(suffix) = cursor.key().strip_prefix(prefix.as_bytes()) else { break };
            if count == max {
                return Ok(());
            }
            let id = key::number(suffix).ok_or(OpError::DAMAGED)?;
            let record = QuotaRecord::decode(cursor.value()).ok_or(OpError::DAMAGED)?;
            if !record.removed {
                self.answer_quota(id, &record, &mut looks, out)?;
                count += 1;
            }
            found = cursor.advance();
        }
        put_number(out, 2, 1);
        Ok(())
    }

    /// `looks`: names that are looked at for what it does not count.
    fn answer_quota(&self, id: u64, record: &QuotaRecord, looks: &mut usize, out: &mut Vec<u8>) -> Result<()> {
        let counting = self.recounts > 0 && id != 0;
        let not_counted = match id {
            0 => Parts::Here,
            _ => match self.stored_inode(id) {
                Ok(directory) => self.parts_below(id, &directory, looks)?,
                Err(_) => Parts::Here,
            },
        };
        put_message(out, 1, |out| {
            put_number(out, 1, id);
            put_number(out, 2, record.bytes_max);
            put_number(out, 3, record.inodes_max);
            put_number(out, 4, record.bytes);
            put_number(out, 5, record.inodes);
            put_number(out, 6, u64::from(counting));
            put_number(out, 7, u64::from(id == 0 && self.limit_being_set().is_some()));
            put_number(out, 8, not_counted.code());
        });
        Ok(())
    }
}
