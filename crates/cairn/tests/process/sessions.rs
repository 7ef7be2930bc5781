//! What a session wrote and another one would name: the client library against a real cluster.
use crate::support::{Cluster, Shape};
use crate::trees::noise;
use cairn_client::{Client, ClientError, ConnectOptions, FileWriter, SEGMENT_MAX, WriteOptions};
use cairn_types::{ErrorCode, Layout};
use cairn_wire::Opcode;
use cairn_wire::common::Extent;
use cairn_wire::meta::{AttributesResponse, CreateRequest, MetaHeader};
use std::time::Duration;

const SMALL: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };

fn code_of<T>(result: Result<T, ClientError>) -> Option<ErrorCode> {
    result.err().and_then(|error| error.code())
}

async fn push(writer: &mut FileWriter, bytes: &[u8]) {
    for part in bytes.chunks(SEGMENT_MAX) {
        let mut buffer = FileWriter::buffer();
        buffer.extend_from_slice(part);
        writer.push(buffer.freeze()).await.expect("pushed");
    }
}

/// A file whose writer lost its session would be made of bytes that may be collected as garbage: it fails as a whole,
/// and writing it again succeeds.
#[test]
fn a_file_is_not_finished_under_another_session() {
    let cluster = Cluster::start(SMALL);
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        let addresses = cluster.address.split(',').map(str::to_owned).collect();
        let client = Client::connect(ConnectOptions::new(addresses)).await.expect("connected");
        let volume = client.volume("default").await.expect("volume");
        let options =
            WriteOptions { mode: 0o644, mtime_ns: 1, layout: Layout::replicated(3), exclusive: false, owner: None };
        let bytes = noise(3 * SEGMENT_MAX + 5, 7);
        let mut writer = volume.write(b"/file", options).await.expect("begun");
        push(&mut writer, &bytes).await;
        // Its session ends, as by an expiry; the next operation has a new one.
        volume.close().await;
        assert_eq!(code_of(writer.finish().await), Some(ErrorCode::WrongSession));
        assert!(volume.try_stat(b"/file", true).await.expect("stat").is_none(), "nothing was made visible");

        // The partition refuses it too, should a client not look.
        let extent = Extent { file_offset: 0, length: 10, pg: 1, index: 0, chunk_offset: 0, flags: 0 };
        let session = volume.session_number().await.expect("another session");
        let partition = volume.partition_of(1).await.expect("the root's");
        let view = client.view();
        let leader = &view.nodes[&view.partitions[&partition].nodes[0]].address;
        for (slot, written_by) in (100..).zip([0, 1, u64::MAX]) {
            let who = Some(Default::default());
            let header = Some(MetaHeader { volume: volume.id(), partition, session, slot, sequence: 1, who });
            let (name, extents) = (b"file".to_vec(), vec![extent]);
            let mut request = CreateRequest { header, parent: 1, name, mode: 0o644, size: 10, ..Default::default() };
            (request.extents, request.written_by) = (extents, written_by);
            let deadline = Duration::from_secs(5);
            let answer = client.call::<AttributesResponse>("/file", leader, Opcode::Create, &request, deadline).await;
            assert_eq!(code_of(answer), Some(ErrorCode::WrongSession));
        }

        let mut writer = volume.write(b"/file", options).await.expect("begun");
        push(&mut writer, &bytes).await;
        let made = writer.finish().await.expect("finished");
        assert_eq!(made.size, bytes.len() as u64);
    });
}
