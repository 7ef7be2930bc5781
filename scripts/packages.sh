#!/usr/bin/env bash
# packages.sh [PROGRAM [OUT]]: packages of a program that was built: .deb where there is dpkg-deb, .rpm where there is rpmbuild, a
# tarball, and SHA256SUMS, in target/packages. Which of them could not be made is said. KINDS="deb tar" makes some of them,
# COMPRESS=fast larger files, sooner.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
program=$(realpath "${1:-$target/release/cairn}")
out=${2:-$target/packages}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
machine=$(uname -m)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
level=9
[ "${COMPRESS:-}" != fast ] || level=1

[ -x "$program" ] || { printf 'packages: there is no program %s; run make release first\n' "$program" >&2; exit 1; }
mkdir -p "$out"
out=$(realpath "$out")
rm -f "$out"/cairn[-_]* "$out/SHA256SUMS"
work=$(mktemp -d "$out/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT
umask 022
tree=$work/tree

# The newest symbol version of the C library that the program asks for: older systems cannot run it.
glibc=2.34
if command -v objdump >/dev/null; then
    glibc=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
fi

stage() {
    install -D -m 755 "$program" "$tree/usr/bin/cairn"
    install -D -m 755 scripts/mount.cairn "$tree/usr/sbin/mount.cairn"
    ln -s mount.cairn "$tree/usr/sbin/mount.fuse.cairn"
    install -D -m 644 packaging/systemd/cairn@.service "$tree/usr/lib/systemd/system/cairn@.service"
    install -m 644 packaging/systemd/cairn-backup.service packaging/systemd/cairn-backup.timer \
        packaging/systemd/cairn-authority.service "$tree/usr/lib/systemd/system/"
    install -D -m 644 packaging/logrotate/cairn "$tree/etc/logrotate.d/cairn"
    install -D -m 644 packaging/systemd/sysusers.conf "$tree/usr/lib/sysusers.d/cairn.conf"
    install -D -m 644 packaging/systemd/tmpfiles.conf "$tree/usr/lib/tmpfiles.d/cairn.conf"
    install -D -m 644 packaging/config/node.toml "$tree/etc/cairn/node.toml"
    install -d "$tree/usr/share/cairn/templates"
    install -m 644 packaging/config/* "$tree/usr/share/cairn/templates/"
    install -m 755 scripts/restore-drill.sh "$tree/usr/share/cairn/restore-drill"
    if [ -d packaging/monitoring ]; then
        cp -r packaging/monitoring "$tree/usr/share/cairn/"
    fi
    install -d "$tree/usr/share/man/man1" "$tree/usr/share/man/man8"
    "$program" man "$tree/usr/share/man/man1"
    install -m 644 packaging/mount.cairn.8 "$tree/usr/share/man/man8/"
    find "$tree/usr/share/man" -type f -exec gzip -9n {} +
    install -d "$tree/usr/share/bash-completion/completions" "$tree/usr/share/zsh/vendor-completions" \
        "$tree/usr/share/fish/vendor_completions.d"
    "$program" completion bash > "$tree/usr/share/bash-completion/completions/cairn"
    "$program" completion zsh > "$tree/usr/share/zsh/vendor-completions/_cairn"
    "$program" completion fish > "$tree/usr/share/fish/vendor_completions.d/cairn.fish"
    install -d "$tree/usr/share/doc/cairn"
    install -m 644 README.md ARCHITECTURE.md CHANGELOG.md SECURITY.md CONTRIBUTING.md "$tree/usr/share/doc/cairn/"
    install -m 644 LICENSE "$tree/usr/share/doc/cairn/copyright"
    ln -s copyright "$tree/usr/share/doc/cairn/LICENSE"
    if [ -f "$target/notices.txt" ]; then
        install -m 644 "$target/notices.txt" "$tree/usr/share/doc/cairn/notices.txt"
    fi
    cp -r docs "$tree/usr/share/doc/cairn/"
    find "$tree" -type f ! -perm -100 -exec chmod 644 {} +
}

make_deb() {
    local arch
    arch=$(dpkg --print-architecture)
    cp -a "$tree" "$work/deb"
    mkdir "$work/deb/DEBIAN"
    cat > "$work/deb/DEBIAN/control" <<EOF
Package: cairn
Version: $version
Architecture: $arch
Maintainer: The Cairn developers <developers@cairn.invalid>
Installed-Size: $(du -sk "$tree" | cut -f 1)
Depends: libc6 (>= $glibc), libgcc-s1
Recommends: fuse3
Section: admin
Priority: optional
Description: distributed file system
 Many ordinary machines, one tree of files, as copies or erasure-coded.
 Servers, command line and mounts are one program.
EOF
    printf '/etc/cairn/node.toml\n/etc/logrotate.d/cairn\n' > "$work/deb/DEBIAN/conffiles"
    install -m 755 packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm "$work/deb/DEBIAN/"
    (cd "$work/deb" && find usr -type f -exec md5sum {} + > DEBIAN/md5sums)
    dpkg-deb --root-owner-group -Zgzip -z$level --build "$work/deb" "$out/cairn_${version}_$arch.deb" >/dev/null
}

make_rpm() {
    local compress=w9.gzdio
    [ "$level" = 9 ] || compress=w1.gzdio
    rpmbuild -bb --quiet --define "_topdir $work/rpm" --define "_tree $tree" --define "_cairn_version $version" \
        --define "_cairn_glibc $glibc" --define "_binary_payload $compress" --define '_build_id_links none' \
        --define 'debug_package %{nil}' --define '__os_install_post %{nil}' --define "_rpmdir $out" \
        --define '_rpmfilename cairn-%{VERSION}-%{RELEASE}.%{ARCH}.rpm' --define 'use_source_date_epoch_as_buildtime 1' \
        packaging/rpm/cairn.spec
}

make_tarball() {
    local name=cairn-$version-linux-$machine
    cp -a "$tree" "$work/$name"
    mv "$work/$name/usr"/* "$work/$name/"
    rmdir "$work/$name/usr"
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" |
        gzip -n$level > "$out/$name.tar.gz"
}

stage
for kind in ${KINDS:-tar deb rpm}; do
    case $kind in
        tar) make_tarball ;;
        deb) if command -v dpkg-deb >/dev/null; then make_deb; else printf 'packages: no .deb: dpkg-deb is not installed\n' >&2; fi ;;
        rpm) if command -v rpmbuild >/dev/null; then make_rpm; else printf 'packages: no .rpm: rpmbuild is not installed\n' >&2; fi ;;
        *) printf 'packages: %s is none of tar, deb and rpm\n' "$kind" >&2; exit 2 ;;
    esac
done
(cd "$out" && sha256sum cairn[-_]* > SHA256SUMS)
(cd "$out" && ls -l cairn[-_]* SHA256SUMS)
