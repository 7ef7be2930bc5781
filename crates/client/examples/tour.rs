//! A tour of the client library: stores a file, lists the directory, reads, appends, and says what there is.
//!
//! `cargo run -p cairn-client --example tour -- 127.0.0.1:7400`, beside a `cairn dev`. A test runs it on a cluster.
use cairn_client::changes::{SetAttributes, SetTime};
use cairn_client::{Client, ConnectOptions, FileWriter, Result, SEGMENT_MAX, Volume, WriteOptions};
use cairn_types::Layout;

/// Stores bytes under a path; nothing is seen there before all of them are durable.
async fn store(volume: &Volume, path: &[u8], bytes: &[u8]) -> Result<u64> {
    // As the directory has it: so many copies, or shards.
    let root = volume.stat(b"/", true).await?;
    let layout = Layout::from_bits(root.layout).unwrap_or(Layout::replicated(3));
    let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
    let mut writer = volume.write(path, options).await?;
    for part in bytes.chunks(SEGMENT_MAX) {
        let mut buffer = FileWriter::buffer();
        buffer.extend_from_slice(part);
        writer.push(buffer.freeze()).await?;
    }
    Ok(writer.finish().await?.inode)
}

async fn read(volume: &Volume, path: &[u8]) -> Result<Vec<u8>> {
    let mut reader = volume.read(path, 0, u64::MAX).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await? {
        bytes.extend_from_slice(&piece.data);
    }
    Ok(bytes)
}

/// Puts bytes behind the end; they are durable when it answers.
async fn append(volume: &Volume, path: &[u8], bytes: &[u8]) -> Result<()> {
    let mut file = volume.open(path).await?;
    file.append(bytes).await?;
    file.close().await
}

/// The tour; answers what it says at each step.
pub async fn tour(managers: Vec<String>) -> Result<Vec<String>> {
    let client = Client::connect(ConnectOptions::new(managers)).await?;
    let volume = client.volume("default").await?;
    let mut said = Vec::new();

    volume.mkdir_all(b"/tour-rust", 0o755).await?;
    let inode = store(&volume, b"/tour-rust/log", b"first\n").await?;
    append(&volume, b"/tour-rust/log", b"second\n").await?;
    said.push(String::from_utf8_lossy(&read(&volume, b"/tour-rust/log").await?).into_owned());

    let set = SetAttributes { mode: Some(0o600), mtime: Some(SetTime::At(-1)), ..SetAttributes::default() };
    let now = volume.setattr(inode, b"/tour-rust/log", set).await?;
    said.push(format!("mode {:o}, {} ns before 1970", now.mode & 0o7777, -now.mtime_ns));

    let directory = volume.stat(b"/tour-rust", true).await?;
    let mut after = Vec::new();
    loop {
        let page = volume.readdir(directory.inode, &after, true).await?;
        for entry in &page.entries {
            let size = entry.attributes.map_or(0, |attributes| attributes.size);
            said.push(format!("{} is {:?} of {size} bytes", String::from_utf8_lossy(&entry.name), entry.kind));
        }
        match page.entries.last() {
            Some(last) if !page.end => after.clone_from(&last.cookie),
            _ => break,
        }
    }

    let counts = volume.statfs().await?;
    said.push(format!("{} inodes, of them {} directories", counts.inodes, counts.directories));
    let status = client.status("the state of the cluster").await?;
    said.push(format!("{} nodes, {} problems", status.map.nodes.len(), status.problems.len()));
    volume.close().await;
    Ok(said)
}

/// As a program.
pub fn main() {
    let managers: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new();
    let outcome = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(tour(managers)).map_err(|error| error.to_string()));
    match outcome {
        Ok(said) => said.iter().for_each(|line| println!("{}", line.trim_end())),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
