//! A placement group in the checkpoint, with who joins it and who was a member.
use crate::pg::{Former, Joining, Member, Older, Pg};
use crate::stripe::{Column, ColumnRecord};
use cairn_types::{DiskId, Epoch, MemberState, PgId, Scheme, VolumeId, WallTime};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PgRecord {
    #[prost(uint32, tag = "1")]
    pub id: u32,
    #[prost(uint32, tag = "2")]
    pub volume: u32,
    #[prost(uint32, tag = "3")]
    pub scheme: u32,
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
    #[prost(uint64, tag = "5")]
    pub creation_epoch: u64,
    /// In order.
    #[prost(uint32, repeated, tag = "6")]
    pub disks: Vec<u32>,
    /// MemberState codes, one a disk.
    #[prost(uint32, repeated, tag = "7")]
    pub states: Vec<u32>,
    #[prost(bool, tag = "8")]
    pub open: bool,
    #[prost(bool, tag = "9")]
    pub retired: bool,
    #[prost(uint32, tag = "12")]
    pub index_floor: u32,
    #[prost(uint64, tag = "10")]
    pub created_ns: u64,
    #[prost(uint64, tag = "11")]
    pub version: u64,
    /// Places of members that were never complete since they were put there.
    #[prost(uint32, repeated, tag = "13")]
    pub filling: Vec<u32>,
    #[prost(message, repeated, tag = "14")]
    pub formers: Vec<FormerRecord>,
    #[prost(message, optional, tag = "15")]
    pub joining: Option<JoiningRecord>,
    /// Places of members that are older copies of themselves and were not complete since.
    #[prost(uint32, repeated, tag = "16")]
    pub older: Vec<u32>,
    #[prost(uint64, tag = "17")]
    pub older_epoch: u64,
    #[prost(bool, tag = "18")]
    pub comparing: bool,
    #[prost(bool, tag = "19")]
    pub older_unconfirmed: bool,
    /// What it is in a stripe group. Of feature level 19.
    #[prost(message, optional, tag = "20")]
    pub column: Option<ColumnRecord>,
}

/// A disk that is to take the place of a member.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct JoiningRecord {
    #[prost(uint32, tag = "1")]
    pub disk: u32,
    #[prost(uint32, tag = "2")]
    pub position: u32,
    /// MemberState code.
    #[prost(uint32, tag = "3")]
    pub state: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct FormerRecord {
    #[prost(uint32, tag = "1")]
    pub disk: u32,
    #[prost(uint32, tag = "2")]
    pub position: u32,
    #[prost(bool, tag = "3")]
    pub served: bool,
    #[prost(bool, tag = "4")]
    pub drop: bool,
    #[prost(bool, tag = "5")]
    pub complete: bool,
}

impl From<&Pg> for PgRecord {
    fn from(pg: &Pg) -> Self {
        Self {
            id: pg.id.get(),
            volume: pg.volume.get(),
            scheme: u32::from(pg.scheme.code()),
            epoch: pg.epoch.get(),
            creation_epoch: pg.creation_epoch.get(),
            disks: pg.members.iter().map(|m| m.disk.get()).collect(),
            states: pg.members.iter().map(|m| u32::from(m.state.code())).collect(),
            filling: (0..).zip(&pg.members).filter(|(_, m)| m.filling).map(|(i, _)| i).collect(),
            formers: pg.formers.iter().map(FormerRecord::from).collect(),
            joining: pg.joining.map(JoiningRecord::from),
            older: (0..).zip(&pg.members).filter(|(_, m)| m.older).map(|(i, _)| i).collect(),
            older_epoch: pg.older.epoch.get(),
            comparing: pg.older.comparing,
            older_unconfirmed: pg.older.unconfirmed,
            open: pg.open,
            retired: pg.retired,
            index_floor: pg.index_floor,
            column: pg.column.map(ColumnRecord::from),
            created_ns: pg.created.0,
            version: pg.version,
        }
    }
}

impl From<Joining> for JoiningRecord {
    fn from(joining: Joining) -> Self {
        let Joining { disk, position, state } = joining;
        Self { disk: disk.get(), position: u32::from(position), state: u32::from(state.code()) }
    }
}

impl TryFrom<JoiningRecord> for Joining {
    type Error = &'static str;
    fn try_from(record: JoiningRecord) -> Result<Self, Self::Error> {
        let position = u8::try_from(record.position).map_err(|_| "the place of a disk that joins")?;
        let state = u8::try_from(record.state).ok().and_then(MemberState::from_code);
        Ok(Self { disk: DiskId(record.disk), position, state: state.ok_or("the state of a disk that joins")? })
    }
}

impl From<&Former> for FormerRecord {
    fn from(former: &Former) -> Self {
        let Former { disk, position, served, complete, drop } = *former;
        Self { disk: disk.get(), position: u32::from(position), served, drop, complete }
    }
}

impl TryFrom<FormerRecord> for Former {
    type Error = &'static str;
    fn try_from(record: FormerRecord) -> Result<Self, Self::Error> {
        let FormerRecord { disk, position, served, drop, complete } = record;
        let position = u8::try_from(position).map_err(|_| "the place of a former member")?;
        Ok(Self { disk: DiskId(disk), position, served, complete, drop })
    }
}

impl TryFrom<PgRecord> for Pg {
    type Error = &'static str;
    fn try_from(record: PgRecord) -> Result<Self, Self::Error> {
        let scheme = u8::try_from(record.scheme).ok().and_then(Scheme::from_code).ok_or("a scheme")?;
        if record.disks.len() != record.states.len() || record.disks.len() != scheme.members() {
            return Err("the members of a placement group");
        }
        let states = record.states.iter().map(|code| u8::try_from(*code).ok().and_then(MemberState::from_code));
        let states: Option<Vec<MemberState>> = states.collect();
        let states = states.ok_or("a member's state")?;
        let fills = |i: u32| record.filling.contains(&i);
        let members = (0..).zip(&record.disks).zip(states);
        let older = |i: u32| record.older.contains(&i);
        let member = |((i, disk), state): ((u32, &u32), MemberState)| {
            let disk = DiskId(*disk);
            Member { disk, state, filling: fills(i), older: older(i) }
        };
        let members = members.map(member);
        let formers = record.formers.iter().map(|f| Former::try_from(*f)).collect::<Result<_, _>>()?;
        Ok(Self {
            id: PgId(record.id),
            volume: VolumeId(record.volume),
            scheme,
            epoch: Epoch(record.epoch),
            creation_epoch: Epoch(record.creation_epoch),
            members: members.collect(),
            formers,
            joining: record.joining.map(Joining::try_from).transpose()?,
            column: record.column.map(Column::try_from).transpose()?,
            open: record.open,
            retired: record.retired,
            index_floor: record.index_floor,
            older: Older {
                epoch: Epoch(record.older_epoch),
                comparing: record.comparing,
                unconfirmed: record.older_unconfirmed,
            },
            created: WallTime(record.created_ns),
            version: record.version,
        })
    }
}
