package io.cairn.hadoop.contract;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FCStatisticsBaseTest;
import org.apache.hadoop.fs.FSMainOperationsBaseTest;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileContextCreateMkdirBaseTest;
import org.apache.hadoop.fs.FileContextMainOperationsBaseTest;
import org.apache.hadoop.fs.FileContextPermissionBase;
import org.apache.hadoop.fs.FileContextTestWrapper;
import org.apache.hadoop.fs.FileContextURIBase;
import org.apache.hadoop.fs.FileContextUtilBase;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FileSystemContractBaseTest;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.SymlinkBaseTest;
import org.junit.Assert;
import org.junit.Assume;
import org.junit.Before;

/** The other suites of hadoop-common's test jar that a file system extends: operations of FileSystem and of FileContext. */
public final class BaseSuites {
    private BaseSuites() {
    }

    static final Class<?>[] ALL = {
        FsMainOperations.class,
        FsContract.class,
        FcMainOperations.class,
        FcCreateMkdir.class,
        FcPermission.class,
        FcUri.class,
        FcUtil.class,
        FcStatistics.class,
        FcSymlink.class,
    };

    private static FileContext context() throws IOException {
        Configuration conf = CairnContract.conf(new Configuration(), false);
        return FileContext.getFileContext(CairnContract.uri(false), conf);
    }

    public static class FsMainOperations extends FSMainOperationsBaseTest {
        public FsMainOperations() {
            super("/fs-main");
        }

        @Override
        protected FileSystem createFileSystem() throws IOException {
            return FileSystem.get(CairnContract.uri(false), CairnContract.conf(new Configuration(), false));
        }

        @Override
        protected Path getDefaultWorkingDirectory() throws IOException {
            return createFileSystem().getHomeDirectory();
        }

        /** Root may read what nobody may. */
        private static void assumeNotRoot() {
            Assume.assumeFalse("root may list any directory", "root".equals(System.getProperty("user.name")));
        }

        @Override
        public void testListStatusThrowsExceptionForUnreadableDir() throws Exception {
            assumeNotRoot();
            super.testListStatusThrowsExceptionForUnreadableDir();
        }

        @Override
        public void testGlobStatusThrowsExceptionForUnreadableDir() throws Exception {
            assumeNotRoot();
            super.testGlobStatusThrowsExceptionForUnreadableDir();
        }
    }

    public static class FsContract extends FileSystemContractBaseTest {
        @Before
        public void connect() throws IOException {
            Configuration conf = CairnContract.conf(new Configuration(), false);
            conf.set("fs.permissions.umask-mode", FileSystemContractBaseTest.TEST_UMASK);
            fs = FileSystem.newInstance(CairnContract.uri(false), conf);
        }

        @Override
        protected String getDefaultWorkingDirectory() {
            return fs.getHomeDirectory().toUri().getPath();
        }
    }

    public static class FcMainOperations extends FileContextMainOperationsBaseTest {
        @Override
        public void setUp() throws Exception {
            fc = context();
            super.setUp();
        }

        @Override
        protected Path getDefaultWorkingDirectory() throws IOException {
            return fc.getHomeDirectory();
        }

        @Override
        protected boolean listCorruptedBlocksSupported() {
            return false;
        }
    }

    public static class FcCreateMkdir extends FileContextCreateMkdirBaseTest {
        @Override
        public void setUp() throws Exception {
            fc = context();
            super.setUp();
        }
    }

    public static class FcPermission extends FileContextPermissionBase {
        @Override
        protected FileContext getFileContext() throws Exception {
            return context();
        }
    }

    public static class FcUri extends FileContextURIBase {
        @Override
        public void setUp() throws Exception {
            fc1 = context();
            fc2 = context();
            super.setUp();
        }
    }

    public static class FcUtil extends FileContextUtilBase {
        @Override
        public void setUp() throws Exception {
            fc = context();
            super.setUp();
        }
    }

    public static class FcStatistics extends FCStatisticsBaseTest {
        @Before
        public void connect() throws IOException {
            fc = context();
            FileContext.clearStatistics();
            fc.mkdir(fileContextTestHelper.getTestRootPath(fc, "test"), FileContext.DEFAULT_PERM, true);
        }

        @Override
        protected void verifyReadBytes(FileSystem.Statistics statistics) {
            // One file of that many blocks, which was read twice.
            Assert.assertEquals(2 * blockSize, statistics.getBytesRead());
        }

        @Override
        protected void verifyWrittenBytes(FileSystem.Statistics statistics) {
            Assert.assertEquals(numBlocks * blockSize, statistics.getBytesWritten());
        }

        @Override
        protected URI getFsUri() {
            return CairnContract.uri(false);
        }
    }

    public static class FcSymlink extends SymlinkBaseTest {
        @Override
        public void setUp() throws Exception {
            // cairn:/// leads nowhere, as the suite wants it: no cluster is the usual one.
            wrapper = new FileContextTestWrapper(FileContext.getFileContext(CairnContract.uri(false), new Configuration()));
            super.setUp();
        }

        /** A link says a path within its volume, which mounts and servers follow too; of an address in it only the path is kept. */
        private static void assumeAddressesAreKept() {
            Configuration options = new Configuration(false);
            options.addResource("contract/cairn.xml");
            Assume.assumeTrue("a link keeps the path of its target only",
                    options.getBoolean("fs.contract.symlinks-keep-addresses", true));
        }

        @Override
        public void testCreateLinkUsingPartQualPath1() throws IOException {
            assumeAddressesAreKept();
            super.testCreateLinkUsingPartQualPath1();
        }

        @Override
        public void testCreateLinkUsingPartQualPath2() throws IOException {
            assumeAddressesAreKept();
            super.testCreateLinkUsingPartQualPath2();
        }

        @Override
        public void testCreateLinkUsingFullyQualPaths() throws IOException {
            assumeAddressesAreKept();
            super.testCreateLinkUsingFullyQualPaths();
        }

        @Override
        protected String getScheme() {
            return "cairn";
        }

        @Override
        protected String testBaseDir1() {
            return "/symlinks/one";
        }

        @Override
        protected String testBaseDir2() {
            return "/symlinks/two";
        }

        @Override
        protected URI testURI() {
            return CairnContract.uri(false);
        }
    }
}
