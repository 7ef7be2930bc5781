package io.cairn.hadoop;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.Path;

/**
 * {@link CairnFileSystem} for FileContext. Nobody closes such a one, and programs make one after the other: all in a virtual machine that have the
 * same cluster, user and options share their connections, which end with it.
 */
public final class CairnFs extends DelegateToFileSystem {
    private final CairnFileSystem cairn;

    public CairnFs(URI uri, Configuration conf) throws IOException, URISyntaxException {
        this(new Shared(uri), conf);
    }

    private static final class Shared extends CairnFileSystem {
        private final URI uri;

        Shared(URI uri) {
            this.uri = uri;
        }

        /** Not with the URI of who calls, which names no cluster. */
        @Override
        public void initialize(URI ignored, Configuration conf) throws IOException {
            super.initialize(uri, conf);
        }

        void count(Statistics shared) {
            statistics = shared;
        }

        @Override
        boolean sharesVolumes() {
            return true;
        }
    }

    /** Hadoop makes a URI of its own from the one that it gets, and takes several managers, or a volume, for a host that is none. */
    private CairnFs(Shared cairn, Configuration conf) throws IOException, URISyntaxException {
        super(URI.create(CairnFileSystem.SCHEME + ":///"), cairn, conf, CairnFileSystem.SCHEME, false);
        this.cairn = cairn;
        // Those of the cluster, not of the URI that was given to Hadoop.
        statistics = getStatistics(cairn.getUri());
        cairn.count(statistics);
    }

    @Override
    public int getUriDefaultPort() {
        return -1;
    }

    /** With the volume, if it is in the authority. */
    @Override
    public URI getUri() {
        return cairn == null ? super.getUri() : cairn.getUri();
    }

    /** Replaces in one step. */
    @Override
    public void renameInternal(Path from, Path to, boolean overwrite) throws IOException {
        cairn.renameStrictly(from, to, overwrite);
    }

    @Override
    public void renameInternal(Path from, Path to) throws IOException {
        cairn.renameStrictly(from, to, false);
    }
}
