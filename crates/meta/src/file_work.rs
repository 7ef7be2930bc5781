//! What servers change in a volume as clients: data servers write files anew, and give them and directories another
//! layout (crate `jobs`). Of `Setattr` that is the layout alone, of `Publish` other places for the same bytes.
//!
//! Whoever stole the key of a data server can so damage contents of files, and not their names, owners, modes, sizes
//! and times. No healthy server is refused: what these servers send is made in few
//! places, all of `client` (`convert`, `moving`, `stage`, `defragment`, `record::settle`), and all of it is of this
//! form in every build that knows keys. Managers are not held to it: whoever has the key of one has the cluster. Not
//! here: which operations servers may ask for at all (`cairn_wire::audience`).

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::error::WireError;
use cairn_wire::holder::Holder;
use cairn_wire::meta::{PublishRequest, SetattrRequest};
use prost::Message;

/// The bit of `valid` for the layout.
const LAYOUT: u32 = 1 << 8;

/// Why a request is no work on files, where a server sent it that does nothing else in volumes.
pub(crate) fn flaw(holder: Option<&Holder>, opcode: Opcode, message: &[u8]) -> Option<WireError> {
    let holder = holder.filter(|holder| matches!(holder.caller, Caller::Node(has) if !has.meets(Roles::MANAGER)))?;
    let is_work = match opcode {
        Opcode::Setattr => SetattrRequest::decode(message).is_ok_and(|asked| asked.valid == LAYOUT && asked.lease == 0),
        Opcode::Publish => PublishRequest::decode(message).is_ok_and(|asked| {
            let keeps_size = asked.size == 0 && !asked.set_size && !asked.check_size;
            keeps_size && asked.keep_mtime && !asked.kill_privileges && asked.lease == 0 && asked.durability == 0
        }),
        _ => true,
    };
    let text = || {
        format!(
            "a server gives files another layout or other places and changes nothing else of them: this {} is for a client, and the \
             key of {} is a server's",
            opcode.name(),
            holder.name
        )
    };
    (!is_work).then(|| WireError::new(ErrorCode::NotPermitted, text()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::NodeId;
    use cairn_wire::rights::Rights;

    fn holder(caller: Caller) -> Holder {
        Holder { name: "data1".into(), caller, node: NodeId(0), until: 0, rights: Rights::everything() }
    }

    /// A stolen data server's key would change sizes, owners and modes of every file, or files never be moved.
    #[test]
    fn a_server_changes_places_and_layouts_alone() {
        let (data, both) = (Caller::Node(Roles::DATA), Caller::Node(Roles::DATA.with(Roles::MANAGER)));
        let publish = |request: PublishRequest| (Opcode::Publish, request.encode_to_vec());
        let set =
            |valid, lease| (Opcode::Setattr, SetattrRequest { valid, lease, ..Default::default() }.encode_to_vec());
        let moved = PublishRequest { if_data_version: 7, mtime_ns: 9, keep_mtime: true, ..PublishRequest::default() };
        let may =
            |caller, (opcode, message): &(Opcode, Vec<u8>)| flaw(Some(&holder(caller)), *opcode, message).is_none();
        let work = [publish(moved.clone()), publish(PublishRequest { layout: 5, ..moved.clone() }), set(LAYOUT, 0)];
        assert!(work.iter().all(|asked| may(data, asked)));
        let other = [
            publish(PublishRequest { keep_mtime: false, ..moved.clone() }),
            publish(PublishRequest { set_size: true, ..moved.clone() }),
            publish(PublishRequest { size: 9, ..moved.clone() }),
            publish(PublishRequest { lease: 1, ..moved.clone() }),
            publish(PublishRequest { durability: 1, ..moved.clone() }),
            publish(PublishRequest { kill_privileges: true, ..moved }),
            set(LAYOUT | 1, 0),
            set(2, 0),
            set(1 << 3, 0),
            set(0, 0),
            set(LAYOUT, 3),
            (Opcode::Setattr, vec![0xff]),
        ];
        for asked in &other {
            assert!(!may(data, asked), "{:?}", asked.0);
            assert!(may(both, asked) && may(Caller::Client, asked) && flaw(None, asked.0, &asked.1).is_none());
        }
    }
}
