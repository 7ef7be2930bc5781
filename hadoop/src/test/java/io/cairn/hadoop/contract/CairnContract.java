package io.cairn.hadoop.contract;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.contract.AbstractFSContract;

/** What Cairn promises to Hadoop, in contract/cairn.xml, at the cluster that the system property cairn.test.cluster names. */
public final class CairnContract extends AbstractFSContract {
    private final boolean named;
    private FileSystem fs;

    /** @param named whether the first name of a path is that of a volume */
    public CairnContract(Configuration conf, boolean named) {
        super(conf);
        this.named = named;
        addConfResource("contract/cairn.xml");
    }

    /** The file system's root. */
    public static URI uri(boolean named) {
        String cluster = System.getProperty("cairn.test.cluster");
        if (cluster == null) {
            throw new IllegalStateException("-Dcairn.test.cluster=host:port names a cluster for tests");
        }
        return URI.create("cairn://" + (named ? "" : "default@") + cluster + "/");
    }

    /** Paths of tests begin with it. */
    public static String prefix(boolean named) {
        return named ? "/default" : "";
    }

    public static Configuration conf(Configuration conf, boolean named) {
        conf.set("fs.defaultFS", uri(named).toString());
        conf.set("fs.AbstractFileSystem.cairn.impl", "io.cairn.hadoop.CairnFs");
        return conf;
    }

    @Override
    public void init() throws IOException {
        super.init();
        fs = FileSystem.get(uri(named), conf(getConf(), named));
    }

    @Override
    public FileSystem getTestFileSystem() {
        return fs;
    }

    @Override
    public String getScheme() {
        return "cairn";
    }

    @Override
    public Path getTestPath() {
        return new Path(prefix(named) + "/contract");
    }
}
