package io.cairn.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import io.cairn.hadoop.contract.CairnContract;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.EnumSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.CreateOpts;
import org.apache.hadoop.fs.Options.Rename;
import org.apache.hadoop.fs.Path;
import org.junit.Test;

/** A URI may name several managers, as clusters have them, which Java takes for no host. */
public class Managers {
    private static final byte[] BYTES = "0123456789".getBytes(StandardCharsets.UTF_8);

    /** YARN and whatever else uses FileContext would not start on a cluster that survives the loss of a manager. */
    @Test
    public void contextsWorkWithAllOfThem() throws Exception {
        String cluster = CairnContract.uri(true).getAuthority();
        for (String volume : new String[] {"", "default@"}) {
            URI uri = URI.create("cairn://" + volume + cluster + "," + cluster + "/");
            Configuration conf = CairnContract.conf(new Configuration(), true);
            conf.set("fs.defaultFS", uri.toString());
            FileContext context = FileContext.getFileContext(conf);
            Path dir = new Path(volume.isEmpty() ? "/default/managers" : "/managers");
            context.delete(dir, true);
            for (String name : new String[] {"one", "two"}) {
                try (FSDataOutputStream out = context.create(new Path(dir, name), EnumSet.of(CreateFlag.CREATE), CreateOpts.createParent())) {
                    out.write(BYTES);
                }
            }
            context.rename(new Path(dir, "one"), new Path(dir, "two"), Rename.OVERWRITE);
            assertEquals(1, context.util().listStatus(dir).length);
            Path whole = context.getFileStatus(new Path(dir, "two")).getPath();
            assertEquals(uri.getAuthority(), whole.toUri().getAuthority());
            byte[] read = new byte[BYTES.length];
            try (FSDataInputStream in = FileContext.getFileContext(uri, conf).open(whole)) {
                in.readFully(0, read);
            }
            assertArrayEquals(BYTES, read);
            assertTrue(FileSystem.get(uri, conf).exists(whole));
            assertTrue(context.delete(dir, true));
        }
    }
}
