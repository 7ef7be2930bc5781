//! What a change is about, for the audit log.
//!
//! Invariants: a bounded text, whatever is asked; `None` for what changes nothing. Settings have no secrets. Single
//! names are not told apart: a client that removes a million has few lines.

use std::fmt::Write;

use cairn_wire::Opcode;
use cairn_wire::manager::{
    ChangeMembersRequest, ClearGrayRequest, ConfigItem, CreateVolumeRequest, DeleteVolumeRequest, DrainRequest,
    ForcePgRequest, GoOnRequest, HibernateRequest, PurgeVolumeRequest, RemoveRequest, RestoreVolumeRequest,
    RevokeKeysRequest, SetConfigRequest, SetVolumeRequest, SplitPartitionRequest, Target,
};
use cairn_wire::meta::{DeleteSnapshotRequest, MetaHeader, RemoveTreeRequest, RmdirRequest, UnlinkRequest};
use cairn_wire::raft::AcceptLossRequest;
use prost::Message;

/// Longest text, in characters.
const LENGTH_MAX: usize = 256;

/// Whether names of a volume are removed.
pub(super) fn is_removal(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Unlink | Opcode::Rmdir | Opcode::RemoveTree | Opcode::DeleteSnapshot)
}

/// The object of a request; `None`: it only asks how things are.
pub(super) fn of(opcode: Opcode, message: &[u8]) -> Option<String> {
    match told(opcode, message) {
        Ok(told) => told.map(cut),
        // It is refused; who looks sees that somebody tried.
        Err(_) => Some("what cannot be decoded".to_owned()),
    }
}

fn told(opcode: Opcode, message: &[u8]) -> Result<Option<String>, prost::DecodeError> {
    let text = match opcode {
        Opcode::CreateVolume => volume(&CreateVolumeRequest::decode(message)?.name),
        Opcode::DeleteVolume => volume(&DeleteVolumeRequest::decode(message)?.name),
        Opcode::RestoreVolume => volume(&RestoreVolumeRequest::decode(message)?.name),
        Opcode::PurgeVolume => volume(&PurgeVolumeRequest::decode(message)?.name),
        Opcode::SetVolume => {
            let asked = SetVolumeRequest::decode(message)?;
            format!("{} {}", volume(&asked.name), settings(&asked.items))
        }
        Opcode::SetConfig => settings(&SetConfigRequest::decode(message)?.items),
        Opcode::RevokeKeys => {
            let names = RevokeKeysRequest::decode(message)?.names;
            if names.is_empty() {
                return Ok(None);
            }
            format!("keys {}", names.join(", "))
        }
        Opcode::ForcePg => {
            let asked = ForcePgRequest::decode(message)?;
            if !asked.confirmed {
                return Ok(None);
            }
            format!("pg{} without disks {}", asked.pg, list(&asked.lost_disks, "d"))
        }
        Opcode::Drain => {
            let asked = DrainRequest::decode(message)?;
            ended(asked.cancel, target(asked.target.as_ref()))
        }
        Opcode::Hibernate => {
            let asked = HibernateRequest::decode(message)?;
            ended(asked.end, target(asked.target.as_ref()))
        }
        Opcode::Remove => target(RemoveRequest::decode(message)?.target.as_ref()),
        Opcode::ClearGray => format!("disk d{}", ClearGrayRequest::decode(message)?.disk),
        Opcode::ChangeMembers => {
            let asked = ChangeMembersRequest::decode(message)?;
            let add = if asked.choose { "others".to_owned() } else { list(&asked.add, "n") };
            let remove = list(&asked.remove, "n");
            format!("group {}: adds {add}, removes {remove}", asked.group)
        }
        Opcode::SplitPartition => {
            let asked = SplitPartitionRequest::decode(message)?;
            format!("p{} into {}", asked.partition, asked.into)
        }
        Opcode::AcceptLoss => format!("group {}", AcceptLossRequest::decode(message)?.group),
        Opcode::GoOn => {
            let given_up = GoOnRequest::decode(message)?.given_up.unwrap_or_default();
            format!("without nodes {}, disks {}", list(&given_up.nodes, "n"), list(&given_up.disks, "d"))
        }
        Opcode::Unlink => within(UnlinkRequest::decode(message)?.header),
        Opcode::Rmdir => within(RmdirRequest::decode(message)?.header),
        Opcode::RemoveTree => {
            let RemoveTreeRequest { header, parent, name } = RemoveTreeRequest::decode(message)?;
            format!("{}: {} in inode {parent}", within(header), String::from_utf8_lossy(&name))
        }
        Opcode::DeleteSnapshot => {
            let DeleteSnapshotRequest { header, name, number } = DeleteSnapshotRequest::decode(message)?;
            let snapshot =
                if name.is_empty() { format!("number {number}") } else { String::from_utf8_lossy(&name).into() };
            format!("{}: snapshot {snapshot}", within(header))
        }
        _ => return Ok(Some(String::new())),
    };
    Ok(Some(text))
}

fn volume(name: &str) -> String {
    format!("volume {name}")
}

fn within(header: Option<MetaHeader>) -> String {
    let header = header.unwrap_or_default();
    let uid = header.who.map(|who| who.uid).unwrap_or_default();
    format!("volume v{}, user {uid}", header.volume)
}

fn settings(items: &[ConfigItem]) -> String {
    let mut text = String::new();
    for item in items {
        let between = if text.is_empty() { "" } else { " " };
        // A `String` takes all of it.
        let _ = write!(text, "{between}{}={}", item.key, item.value);
        if text.len() > 4 * LENGTH_MAX {
            break;
        }
    }
    text
}

fn target(target: Option<&Target>) -> String {
    match target {
        Some(target) if target.kind == 1 => format!("disk d{}", target.id),
        Some(target) if target.kind == 2 => format!("node n{}", target.id),
        Some(target) => format!("rack {}", target.rack),
        None => String::new(),
    }
}

fn ended(is_end: bool, target: String) -> String {
    if is_end { format!("{target}, its end") } else { target }
}

fn list(numbers: &[u32], prefix: &str) -> String {
    if numbers.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<String> = numbers.iter().take(LENGTH_MAX).map(|number| format!("{prefix}{number}")).collect();
    shown.join(" ")
}

fn cut(text: String) -> String {
    match text.char_indices().nth(LENGTH_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(key: &str, value: &str) -> ConfigItem {
        ConfigItem { key: key.to_owned(), value: value.to_owned(), ..Default::default() }
    }

    /// After an incident nobody could say which volume was deleted, or who only looked.
    #[test]
    fn a_change_names_what_it_changes() {
        let deleted = DeleteVolumeRequest { name: "docs".to_owned(), force: true };
        assert_eq!(of(Opcode::DeleteVolume, &deleted.encode_to_vec()).as_deref(), Some("volume docs"));
        let set = SetVolumeRequest { name: "docs".to_owned(), items: vec![item("a", "1"), item("b", "")] };
        assert_eq!(of(Opcode::SetVolume, &set.encode_to_vec()).as_deref(), Some("volume docs a=1 b="));
        let drained = DrainRequest { target: Some(Target { kind: 2, id: 7, ..Default::default() }), cancel: true };
        assert_eq!(of(Opcode::Drain, &drained.encode_to_vec()).as_deref(), Some("node n7, its end"));
        let revoked = RevokeKeysRequest { names: vec!["eve".to_owned(), "bob".to_owned()] };
        assert_eq!(of(Opcode::RevokeKeys, &revoked.encode_to_vec()).as_deref(), Some("keys eve, bob"));
        assert_eq!(of(Opcode::RevokeKeys, &[]), None, "`admin key ls`");
        let force = |confirmed| ForcePgRequest { pg: 3, lost_disks: vec![1, 2], confirmed }.encode_to_vec();
        assert_eq!(of(Opcode::ForcePg, &force(true)).as_deref(), Some("pg3 without disks d1 d2"));
        assert_eq!(of(Opcode::ForcePg, &force(false)), None);
        let header = || Some(MetaHeader { volume: 4, ..Default::default() });
        let tree = RemoveTreeRequest { header: header(), parent: 1, name: b"project".to_vec() };
        let told = of(Opcode::RemoveTree, &tree.encode_to_vec());
        assert_eq!(told.as_deref(), Some("volume v4, user 0: project in inode 1"));
        let names = [b"a".to_vec(), b"b".to_vec()];
        let [one, other] = names.map(|name| UnlinkRequest { header: header(), parent: 1, name }.encode_to_vec());
        assert_eq!(of(Opcode::Unlink, &one), of(Opcode::Unlink, &other), "one line for all");
    }

    /// One request would fill the log.
    #[test]
    fn it_is_bounded_and_never_fails() {
        let names = vec!["é".repeat(200); 1000];
        let told = of(Opcode::RevokeKeys, &RevokeKeysRequest { names }.encode_to_vec()).expect("told");
        assert_eq!(told.chars().count(), LENGTH_MAX + 1);
        assert!(of(Opcode::SetConfig, &[0xff; 9]).is_some());
        for opcode in Opcode::ALL.iter().filter(|opcode| opcode.is_admin_change()) {
            let looks = matches!(opcode, Opcode::RevokeKeys | Opcode::ForcePg);
            assert_eq!(of(*opcode, &[]).is_none_or(|told| told.is_empty()), looks || told_empty(*opcode), "{opcode:?}");
        }
    }

    /// Those that have nothing to name without a message.
    fn told_empty(opcode: Opcode) -> bool {
        matches!(opcode, Opcode::SetConfig | Opcode::Drain | Opcode::Hibernate | Opcode::Remove)
    }
}
