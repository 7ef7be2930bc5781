package io.cairn.hadoop;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;

/**
 * What symbolic links say. Servers and mounts follow them, so a link says a path within its volume; in Hadoop such a path may begin with the name
 * of the volume.
 */
final class Links {
    private Links() {
    }

    /** What a link in a volume has to say to lead to a path of Hadoop. */
    static String toVolume(Volumes volumes, String volume, URI own, Path link, Path target) throws IOException {
        URI uri = target.toUri();
        boolean other = uri.getScheme() != null && !uri.getScheme().equalsIgnoreCase(own.getScheme())
                || uri.getAuthority() != null && !uri.getAuthority().equals(own.getAuthority());
        if (other) {
            throw new PathIOException(link.toString(), "a link leads within its volume, not to " + target
                    + "; name a path of volume " + volume);
        }
        String path = uri.getPath();
        if (!path.startsWith("/") || !volumes.areNamed()) {
            return path;
        }
        if (!volume.equals(volumes.nameOf(target))) {
            throw new PathIOException(link.toString(), "a link leads within its volume, not to " + target
                    + "; name a path below /" + volume);
        }
        String inside = path.substring(1 + volume.length());
        return inside.isEmpty() ? "/" : inside;
    }

    /** The path of Hadoop that a link in a volume says. */
    static Path toHadoop(Volumes volumes, String volume, String says) {
        return new Path(says.startsWith("/") && volumes.areNamed() ? "/" + volume + says : says);
    }
}
