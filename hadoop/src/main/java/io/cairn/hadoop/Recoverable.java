package io.cairn.hadoop;

import org.apache.hadoop.conf.Configuration;

/**
 * Makes {@link RecoverableFileSystem} the file system of the scheme where Hadoop has lease recovery, from 3.3.6 on: earlier ones cannot load the
 * class, and must not be told of it by META-INF/services. Who names a class in {@code fs.cairn.impl} gets that one.
 */
final class Recoverable {
    private static final String INTERFACE = "org.apache.hadoop.fs.LeaseRecoverable";
    private static final String IMPLEMENTATION = "fs.cairn.impl";
    /** Says which class; as HDFS adds hdfs-default.xml. */
    private static final String DEFAULTS = "cairn-default.xml";

    private Recoverable() {
    }

    static void useWherePossible() {
        try {
            Class.forName(INTERFACE, false, Recoverable.class.getClassLoader());
        } catch (ClassNotFoundException e) {
            return;
        }
        if (new Configuration().get(IMPLEMENTATION) == null) {
            Configuration.addDefaultResource(DEFAULTS);
        }
    }
}
