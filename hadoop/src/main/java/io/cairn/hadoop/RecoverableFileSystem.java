package io.cairn.hadoop;

import java.io.IOException;
import java.util.Locale;
import org.apache.hadoop.fs.LeaseRecoverable;
import org.apache.hadoop.fs.Path;

/** What programs such as HBase look for: a class of its own, since Hadoop before 3.3.6 lacks the interface. {@link Recoverable} chooses it. */
public class RecoverableFileSystem extends CairnFileSystem implements LeaseRecoverable {
    private static final String CAPABILITY = "fs.capability.lease.recoverable";

    @Override
    public boolean hasPathCapability(Path given, String capability) throws IOException {
        return CAPABILITY.equals(capability.toLowerCase(Locale.ENGLISH)) ? absolute(given) != null
                : super.hasPathCapability(given, capability);
    }
}
