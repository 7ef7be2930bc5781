//! A volume in the checkpoint. `settings` is new with feature level 4, and empty before it is activated; `trashed_ns`
//! (0: not in the trash) and `trash_promised_ns` (0: nothing was promised) with level 5; `ranges_from` (0: all ranges
//! are known) with level 25.
use super::SettingRecord;
use crate::items::Volume;
use crate::volume_settings::VolumeSettings;
use cairn_types::{Layout, VolumeId, WallTime};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VolumeRecord {
    #[prost(uint32, tag = "1")]
    pub id: u32,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(uint64, tag = "3")]
    pub layout: u64,
    #[prost(bool, tag = "4")]
    pub deleted: bool,
    #[prost(uint64, tag = "5")]
    pub created_ns: u64,
    #[prost(uint64, tag = "6")]
    pub version: u64,
    #[prost(message, repeated, tag = "7")]
    pub settings: Vec<SettingRecord>,
    #[prost(uint64, tag = "8")]
    pub trashed_ns: u64,
    #[prost(uint64, tag = "9")]
    pub trash_promised_ns: u64,
    #[prost(uint64, tag = "10")]
    pub ranges_from: u64,
}

impl VolumeRecord {
    pub(crate) fn of(volume: &Volume, promised: Option<&WallTime>) -> Self {
        let setting =
            |(key, value): (crate::Key, &str)| SettingRecord { key: key.name().to_string(), value: value.to_string() };
        Self {
            id: volume.id.get(),
            name: volume.name.clone(),
            layout: volume.layout.to_bits(),
            deleted: volume.deleted,
            created_ns: volume.created.0,
            version: volume.version,
            settings: volume.settings.iter().map(setting).collect(),
            trashed_ns: volume.trashed.map_or(0, |since| since.0),
            trash_promised_ns: promised.map_or(0, |until| until.0),
            ranges_from: volume.ranges_from,
        }
    }
}

impl VolumeRecord {
    /// Until when it is kept in the trash at least, if that was ever promised.
    pub(crate) fn promised(&self) -> Option<(VolumeId, WallTime)> {
        (self.trash_promised_ns != 0).then_some((VolumeId(self.id), WallTime(self.trash_promised_ns)))
    }
}

impl TryFrom<VolumeRecord> for Volume {
    type Error = &'static str;
    fn try_from(record: VolumeRecord) -> Result<Self, Self::Error> {
        let mut settings = VolumeSettings::default();
        let items = record.settings.iter().map(|item| (item.key.as_str(), item.value.as_str()));
        settings.set(items).map_err(|_| "a volume's setting")?;
        Ok(Self {
            id: VolumeId(record.id),
            name: record.name,
            layout: Layout::from_bits(record.layout).ok_or("a layout")?,
            deleted: record.deleted,
            trashed: (record.trashed_ns != 0).then_some(WallTime(record.trashed_ns)),
            created: WallTime(record.created_ns),
            version: record.version,
            settings,
            ranges_from: record.ranges_from,
        })
    }
}
