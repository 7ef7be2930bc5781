package io.cairn.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;
import static org.junit.Assume.assumeTrue;

import io.cairn.hadoop.contract.CairnContract;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.token.DtUtilShell;
import org.apache.hadoop.security.token.SecretManager;
import org.apache.hadoop.security.token.Token;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/**
 * Tokens that carry a key from who submits a job to its tasks. Against a cluster with keys, $CAIRN_KEY names that of a client, and
 * $CAIRN_TEST_ENDED_KEY and $CAIRN_TEST_ADMIN_KEY others.
 */
public class Tokens {
    private static final String OUTPUT = "/default/tokens";
    private final Configuration conf = CairnContract.conf(new Configuration(), true);
    private Path dir;
    private FileSystem fs;

    @Before
    public void connect() throws IOException {
        dir = Files.createTempDirectory("cairn-tokens-");
        fs = FileSystem.newInstance(CairnContract.uri(true), conf);
    }

    @After
    public void leave() throws IOException {
        fs.close();
        try (java.util.stream.Stream<Path> left = Files.walk(dir)) {
            left.sorted(java.util.Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        }
    }

    private static boolean hasKey() {
        return System.getenv("CAIRN_KEY") != null;
    }

    private static byte[] key(String variable) throws IOException {
        return Files.readAllBytes(Paths.get(System.getenv(variable)));
    }

    private static Text service() {
        return new Text("cairn://" + System.getProperty("cairn.test.cluster"));
    }

    private Credentials credentials(Token<?> token) {
        Credentials credentials = new Credentials();
        credentials.addToken(token.getService(), token);
        return credentials;
    }

    /** A token with any password. */
    private static Token<KeyTokenIdentifier> token(byte[] secret, long untilMs) {
        byte[] identifier = new KeyTokenIdentifier("job-1", "yarn", 0, untilMs).getBytes();
        return new Token<>(identifier, secret, KeyTokenIdentifier.KIND, service());
    }

    private Path save(Credentials credentials) throws IOException {
        Path file = dir.resolve("credentials");
        Files.deleteIfExists(file);
        credentials.writeTokenStorageFile(new org.apache.hadoop.fs.Path(file.toUri()), conf);
        return file;
    }

    /** What a virtual machine of its own says that finds no key in a file, and these credentials, or none. */
    private String run(Path credentials, String key, String... program) throws Exception {
        List<String> command = new ArrayList<>(Arrays.asList(System.getProperty("java.home") + "/bin/java",
                "-Dcairn.test.cluster=" + System.getProperty("cairn.test.cluster"),
                "-Djava.io.tmpdir=" + System.getProperty("java.io.tmpdir"), "-cp", System.getProperty("java.class.path")));
        command.addAll(Arrays.asList(program));
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        Map<String, String> environment = builder.environment();
        environment.keySet().removeAll(Arrays.asList("CAIRN_KEY", "XDG_CONFIG_HOME"));
        environment.put("HOME", dir.toString());
        if (key != null) {
            environment.put("CAIRN_KEY", key);
        }
        if (credentials != null) {
            environment.put("HADOOP_TOKEN_FILE_LOCATION", credentials.toString());
        }
        Process process = builder.start();
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        byte[] part = new byte[4096];
        for (int got = process.getInputStream().read(part); got >= 0; got = process.getInputStream().read(part)) {
            said.write(part, 0, got);
        }
        process.waitFor();
        return said.toString("UTF-8");
    }

    private String task(Path credentials) throws Exception {
        return run(credentials, null, Task.class.getName());
    }

    /** What a task does: it works with files, without a word about keys. */
    public static final class Task {
        private Task() {
        }

        public static void main(String[] arguments) throws Exception {
            Configuration conf = CairnContract.conf(new Configuration(), true);
            conf.set(CairnFileSystem.TIMEOUT, "10s");
            conf.set(CairnFileSystem.CONNECT_TIMEOUT, "10s");
            try (FileSystem fs = FileSystem.get(CairnContract.uri(true), conf)) {
                try (FSDataOutputStream out = fs.create(new org.apache.hadoop.fs.Path(OUTPUT))) {
                    out.writeBytes("by the task");
                }
                // It may submit another job.
                System.out.println("written, and hands on " + fs.getDelegationToken("yarn").decodeIdentifier().getUser().getUserName());
            } catch (IOException e) {
                System.out.println("refused: " + e.getMessage());
            }
        }
    }

    private String written() throws IOException {
        org.apache.hadoop.fs.Path path = new org.apache.hadoop.fs.Path(OUTPUT);
        byte[] bytes = new byte[(int) fs.getFileStatus(path).getLen()];
        try (FSDataInputStream in = fs.open(path)) {
            in.readFully(0, bytes);
        }
        fs.delete(path, false);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** Jobs would ask a cluster without keys for tokens that there are not. */
    @Test
    public void withoutAKeyThereAreNoTokens() throws IOException {
        assumeTrue("there is a key", !hasKey());
        assertNull(fs.getCanonicalServiceName());
        assertNull(fs.getDelegationToken("yarn"));
        assertEquals(0, fs.addDelegationTokens("yarn", new Credentials()).length);
    }

    /** A job would have no token, or two; its key would be changed on its way, or stand in a log. */
    @Test
    public void aTokenCarriesTheKeyAndShowsItNowhere() throws Exception {
        assumeTrue("there is no key", hasKey());
        byte[] key = key("CAIRN_KEY");
        assertEquals(service().toString(), fs.getCanonicalServiceName());
        Credentials credentials = new Credentials();
        Token<?>[] tokens = fs.addDelegationTokens("yarn", credentials);
        assertEquals(1, tokens.length);
        assertEquals("one for each cluster", 0, fs.addDelegationTokens("yarn", credentials).length);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        credentials.writeTokenStorageToStream(new DataOutputStream(out));
        Credentials back = new Credentials();
        back.readTokenStorageStream(new DataInputStream(new ByteArrayInputStream(out.toByteArray())));
        Token<?> token = back.getToken(service());
        assertEquals(KeyTokenIdentifier.KIND, token.getKind());
        assertArrayEquals("as the file has it", key, token.getPassword());
        String shown = token + " " + token.decodeIdentifier() + " " + back.getAllTokens();
        assertTrue(shown, shown.contains("alice"));
        String hex = org.apache.hadoop.util.StringUtils.byteToHexString(Arrays.copyOfRange(key, key.length - 60, key.length - 30));
        assertFalse(shown, shown.contains("PRIVATE") || shown.replace(" ", "").contains(hex));
        FileContext context = FileContext.getFileContext(CairnContract.uri(true), conf);
        List<Token<?>> more = context.getDelegationTokens(new org.apache.hadoop.fs.Path("/default"), "yarn");
        assertArrayEquals(key, more.get(0).getPassword());
    }

    /** YARN would refuse the job because it cannot renew the key, or say that the key is gone when it is not. */
    @Test
    public void keysAreNotRenewedOrCancelledButTold() throws Exception {
        long soon = System.currentTimeMillis() + 60_000;
        Token<?> token = token(new byte[0], soon);
        assertFalse(token.isManaged());
        assertEquals(soon, token.renew(conf));
        try {
            token.cancel(conf);
            fail("it was taken away");
        } catch (IOException e) {
            assertTrue(e.getMessage(), e.getMessage().contains("job-1") && e.getMessage().contains("; take the key away"));
        }
        try {
            token(new byte[0], soon - 120_000).renew(conf);
            fail("it has ended");
        } catch (SecretManager.InvalidToken e) {
            assertTrue(e.getMessage(), e.getMessage().contains("job-1") && e.getMessage().contains("; submit the job"));
        }
    }

    /** The tasks of a job would be strangers to the cluster, or not say why they are. */
    @Test
    public void aTaskWithoutAKeyFileWorksWithTheToken() throws Exception {
        assumeTrue("there is no key", hasKey());
        String said = task(null);
        assertTrue(said, said.contains("refused: ") && said.contains("CAIRN_KEY"));
        Credentials credentials = new Credentials();
        fs.addDelegationTokens("yarn", credentials);
        said = task(save(credentials));
        assertTrue(said, said.contains("written, and hands on alice"));
        assertEquals("by the task", written());
        // The job was submitted to another manager of the same cluster, too.
        Token<?> wider = credentials.getToken(service()).copyToken();
        wider.setService(new Text(service() + ",elsewhere:7400"));
        said = task(save(credentials(wider)));
        assertTrue(said, said.contains("written, and hands on alice"));
        assertEquals("by the task", written());
        wider.setService(new Text("cairn://elsewhere:7400"));
        said = task(save(credentials(wider)));
        assertTrue("the key of another cluster", said.contains("refused: ") && said.contains("CAIRN_KEY"));
        said = task(save(credentials(token(key("CAIRN_TEST_ENDED_KEY"), 0))));
        assertTrue(said, said.contains("refused: ") && said.contains("ended at 2") && said.contains("; have a key made"));
        said = task(save(credentials(token("no key".getBytes(StandardCharsets.UTF_8), 0))));
        assertTrue(said, said.contains("the token CAIRN_KEY for " + service() + " is no key of a Cairn cluster"));
    }

    /** Where Hadoop has no Kerberos nobody could give a job a token; or the key of an administrator would go to all machines. */
    @Test
    public void dtutilGetsATokenOfAClientsKey() throws Exception {
        assumeTrue("there is no key", hasKey());
        File file = dir.resolve("fetched").toFile();
        String[] get = {DtUtilShell.class.getName(), "get", service() + "/", file.toString()};
        String said = run(null, System.getenv("CAIRN_TEST_ADMIN_KEY"), get);
        assertTrue(said, said.contains("is not handed on; name a client's key") && !file.exists());
        said = run(null, null, get);
        assertTrue(said, said.contains("no key is shown to this cluster") && !file.exists());
        said = run(null, System.getenv("CAIRN_KEY"), get);
        assertTrue(said, file.exists());
        assertFalse(said, said.contains("PRIVATE"));
        said = task(file.toPath());
        assertTrue(said, said.contains("written, and hands on alice"));
        assertEquals("by the task", written());
        said = run(null, null, DtUtilShell.class.getName(), "print", file.toString());
        assertTrue(said, said.contains("CAIRN_KEY") && !said.contains("PRIVATE"));
    }
}
