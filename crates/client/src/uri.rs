//! Names of clusters, volumes and remote paths: `/a/b`, `vol:/a/b`, `cairn://host:port[,host:port]/volume/path`.
use cairn_types::name::{NAME_MAX, PATH_MAX};
use std::fmt;

/// Where a cluster is looked for when nothing says otherwise.
pub const DEFAULT_CLUSTER: &str = "127.0.0.1:7400";
/// The volume of a path without one.
pub const DEFAULT_VOLUME: &str = "default";
/// Scheme of full URIs.
pub const SCHEME: &str = "cairn://";

/// A text that names no remote path. The texts say what is right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UriError {
    #[error(
        "{0:?} is no remote path: write /dir/file (volume \"default\"), volume:/dir/file or cairn://host:port/volume/dir/file"
    )]
    NotRemote(String),
    #[error("{0:?}: {1:?} is no host:port; write for example 127.0.0.1:7400")]
    BadAddress(String, String),
    #[error("{0:?} names no volume; write cairn://host:port/volume/path")]
    NoVolume(String),
    #[error("{volume:?} is no volume name: use 1 to 63 letters, digits, '.', '_' or '-'")]
    BadVolume { volume: String },
    #[error("the path is longer than 4096 bytes; work from a directory nearer to it, or shorten the names")]
    PathTooLong,
    #[error("the name {0:?}… is longer than 255 bytes; shorten it")]
    NameTooLong(String),
    #[error("the path contains a NUL byte, which no file name can have")]
    NulByte,
}

/// A path in a volume of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemotePath {
    /// Manager addresses, if the text named them.
    pub cluster: Option<Vec<String>>,
    pub volume: String,
    /// Absolute, without `.`, `..` and doubled slashes.
    pub path: Vec<u8>,
}

impl RemotePath {
    /// Parses any of the three forms.
    pub fn parse(text: &[u8]) -> Result<RemotePath, UriError> {
        let shown = || String::from_utf8_lossy(text).into_owned();
        if let Some(rest) = text.strip_prefix(SCHEME.as_bytes()) {
            let cut = rest.iter().position(|b| *b == b'/').ok_or_else(|| UriError::NoVolume(shown()))?;
            let cluster = parse_addresses(&String::from_utf8_lossy(&rest[..cut]))
                .map_err(|bad| UriError::BadAddress(shown(), bad))?;
            let rest = &rest[cut + 1..];
            let cut = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
            if cut == 0 {
                return Err(UriError::NoVolume(shown()));
            }
            let volume = check_volume(&rest[..cut])?;
            return Ok(RemotePath { cluster: Some(cluster), volume, path: normalize(&rest[cut..])? });
        }
        if text.first() == Some(&b'/') {
            return Ok(RemotePath { cluster: None, volume: DEFAULT_VOLUME.into(), path: normalize(text)? });
        }
        let cut = text.windows(2).position(|w| w == b":/").ok_or_else(|| UriError::NotRemote(shown()))?;
        if text[cut..].starts_with(b"://") {
            // A URI of something else, or of a cluster whose scheme was written otherwise: it would be looked for in
            // the default one.
            return Err(UriError::NotRemote(shown()));
        }
        Ok(RemotePath { cluster: None, volume: check_volume(&text[..cut])?, path: normalize(&text[cut + 1..])? })
    }
    /// The last component; empty for the root.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|b| *b == b'/').next().unwrap_or_default()
    }
    /// The directory that holds it; the root for the root.
    pub fn parent(&self) -> RemotePath {
        let cut = self.path.iter().rposition(|b| *b == b'/').unwrap_or(0).max(1);
        RemotePath { path: self.path[..cut].to_vec(), ..self.clone() }
    }
    /// The entry `name` in this directory.
    pub fn join(&self, name: &[u8]) -> RemotePath {
        let mut path = self.path.clone();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        RemotePath { path, ..self.clone() }
    }
}

impl fmt::Display for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cluster) = &self.cluster {
            write!(f, "{SCHEME}{}/{}", cluster.join(","), self.volume)?;
        } else if self.volume != DEFAULT_VOLUME {
            write!(f, "{}:", self.volume)?;
        }
        write!(f, "{}", String::from_utf8_lossy(&self.path))
    }
}

/// Parses `host:port[,host:port]`; the error is the part that is wrong.
pub fn parse_addresses(text: &str) -> Result<Vec<String>, String> {
    text.split(',')
        .map(|part| {
            let part = part.trim();
            match part.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0) => {
                    Ok(part.to_owned())
                }
                _ => Err(part.to_owned()),
            }
        })
        .collect()
}

fn check_volume(name: &[u8]) -> Result<String, UriError> {
    let good = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > 63 || !name.iter().all(good) {
        return Err(UriError::BadVolume { volume: String::from_utf8_lossy(name).into_owned() });
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Removes doubled slashes and `.`; resolves `..` by its text, as shells and URIs do.
fn normalize(path: &[u8]) -> Result<Vec<u8>, UriError> {
    if path.len() > PATH_MAX {
        return Err(UriError::PathTooLong);
    }
    if path.contains(&0) {
        return Err(UriError::NulByte);
    }
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            _ if part.len() > NAME_MAX => {
                return Err(UriError::NameTooLong(String::from_utf8_lossy(&part[..32]).into_owned()));
            }
            _ => parts.push(part),
        }
    }
    let mut out = Vec::with_capacity(path.len() + 1);
    for part in &parts {
        out.push(b'/');
        out.extend_from_slice(part);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RemotePath, UriError> {
        RemotePath::parse(text.as_bytes())
    }

    #[test]
    fn the_three_forms_name_the_same_file() {
        let short = parse("/a/b").expect("short");
        let named = parse("default:/a//./x/../b/").expect("named");
        let full = parse("cairn://h1:1,h2:2/default/a/b").expect("full");
        assert_eq!(short, named);
        assert_eq!((&full.volume, &full.path), (&short.volume, &short.path));
        assert_eq!(full.cluster, Some(vec!["h1:1".into(), "h2:2".into()]));
        assert_eq!(full.to_string(), "cairn://h1:1,h2:2/default/a/b");
    }

    #[test]
    fn roots_parents_and_names() {
        let root = parse("vol:/").expect("root");
        assert_eq!((root.path.as_slice(), root.name(), root.parent()), (&b"/"[..], &b""[..], root.clone()));
        let file = root.join(b"a").join(b"b");
        assert_eq!((file.to_string(), file.name(), file.parent()), ("vol:/a/b".into(), &b"b"[..], root.join(b"a")));
        assert_eq!(parse("cairn://h:1/v").expect("no path").path, b"/");
    }

    #[test]
    fn mistakes_are_named() {
        assert!(matches!(parse("a/b"), Err(UriError::NotRemote(_))));
        assert!(matches!(parse("http://h/x"), Err(UriError::NotRemote(_))), "it is no volume \"http\"");
        assert!(matches!(parse("cairn://h/v/x"), Err(UriError::BadAddress(..))));
        assert!(matches!(parse("cairn://h:1"), Err(UriError::NoVolume(_))));
        assert!(matches!(parse("cairn://h:1//x"), Err(UriError::NoVolume(_))));
        assert!(matches!(parse("a b:/x"), Err(UriError::BadVolume { .. })));
        assert!(matches!(parse(&format!("/{}", "x".repeat(256))), Err(UriError::NameTooLong(_))));
        assert!(matches!(parse(&"/x".repeat(3000)), Err(UriError::PathTooLong)));
        assert!(matches!(RemotePath::parse(b"/a\0b"), Err(UriError::NulByte)));
    }
}
