package io.cairn.hadoop;

import java.io.IOException;
import org.apache.hadoop.fs.MultipartUploaderBuilder;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.impl.FileSystemMultipartUploaderBuilder;

/** Uploads in parts: a class of its own, since Hadoop before 3.3.1 lacks what it uses and must never load it. */
final class Uploads {
    private Uploads() {
    }

    static MultipartUploaderBuilder of(CairnFileSystem fs, Path base) throws IOException {
        return new FileSystemMultipartUploaderBuilder(fs, base);
    }
}
