//! From which feature level on members understand a command ([`cairn_types::feature`]): nothing is logged that one of
//! them would refuse. Written by hand.
use super::{BINDING_LEVEL, Command, ConfigValue, REVOKED_LEVEL};
use crate::config::{Key, STAGE_LEVEL};
use crate::partition_members::PLACED_LEVEL;
use crate::stripe::STRIPE_LEVEL;
use cairn_types::{Layout, Scheme};

/// Of a layout, from which on members decode it.
fn layout_level(layout: Layout) -> u32 {
    layout.schemes_since_level().max(if layout.staged().is_some() { STAGE_LEVEL } else { 0 })
}

/// The same of its bits; what nobody knows is refused.
fn bits_level(bits: u64) -> u32 {
    Layout::from_bits(bits).map_or(0, layout_level)
}

fn scheme_level(code: u32) -> u32 {
    u8::try_from(code).ok().and_then(Scheme::from_code).map_or(0, Scheme::since_level)
}

/// What nobody knows needs no level: it is refused.
fn setting_level(item: &ConfigValue) -> u32 {
    Key::from_name(&item.key).map_or(0, Key::level)
}

impl Command {
    /// The feature level from which on members understand it: each new command, and each new field that `apply` looks
    /// at, gets the newest one.
    pub fn level(&self) -> u32 {
        match self {
            Self::Note(_) | Self::SetGray(_) => 1,
            Self::StartJob(command) => bits_level(command.layout),
            Self::SetVolume(command) => command.items.iter().map(setting_level).max().unwrap_or(0).max(4),
            Self::PartitionMarks(_) => 5,
            Self::SetPartitionMembers(command) if command.renew != 0 => 5,
            Self::DiskGenerations(_) | Self::TakeUp(_) | Self::TrashVolume(_) | Self::RestoreVolume(_) => 5,
            Self::DeleteVolume(command) if command.trashed_ns != 0 => 5,
            Self::CreateVolume(command) if !command.members.is_empty() => PLACED_LEVEL,
            Self::CreateVolume(command) => bits_level(command.layout).max(if command.partitions > 1 { 5 } else { 0 }),
            Self::CreatePgs(command) => scheme_level(command.scheme),
            Self::Register(command) if command.disks.iter().any(|disk| disk.tells_generations) => 5,
            Self::ForcePg(command) if !command.fresh.is_empty() => 15,
            Self::ForcePg(command) if command.lost.is_empty() => 5,
            Self::AddPartitions(command) if !command.members.is_empty() => PLACED_LEVEL,
            Self::RangeEnded(command) if !command.members.is_empty() => PLACED_LEVEL,
            Self::AddPartitions(_) | Self::RangeEnded(_) => 6,
            Self::CreateStripeGroups(command) => scheme_level(command.later).max(STRIPE_LEVEL),
            Self::BindNode(_) => BINDING_LEVEL,
            Self::RevokeKeys(_) => REVOKED_LEVEL,
            Self::ActivateLevel(command) => command.level,
            Self::SetConfig(command) => {
                let level = |item: &ConfigValue| {
                    let layout = item.value.parse().ok().filter(|_| Key::from_name(&item.key).is_some());
                    setting_level(item).max(layout.map_or(0, layout_level))
                };
                command.items.iter().map(level).max().unwrap_or(0)
            }
            _ => 0,
        }
    }
}
