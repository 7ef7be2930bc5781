package io.cairn.hadoop;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Properties;

/**
 * Brings the native library out of the jar and loads it, once for each class loader: into a directory that nobody else may enter, which is
 * gone again when the library is loaded. What is loaded has the hash that the jar was built with.
 */
final class NativeLibrary {
    /** A file to load in the place of the one in the jar. */
    static final String PROPERTY = "cairn.native.library";
    private static final String INDEX = "native.properties";

    private NativeLibrary() {
    }

    static void load() {
        String given = System.getProperty(PROPERTY);
        if (given != null && !given.isEmpty()) {
            System.load(Paths.get(given).toAbsolutePath().toString());
            return;
        }
        try {
            loadFromJar();
        } catch (IOException e) {
            throw failed(e.toString(), e);
        }
    }

    private static UnsatisfiedLinkError failed(String cause, Throwable under) {
        UnsatisfiedLinkError error = new UnsatisfiedLinkError("the native library of Cairn: " + cause
                + "; use the jar that make hadoop builds on this kind of machine, or name a library by -D" + PROPERTY
                + "=FILE. It has to be allowed to run programs from " + System.getProperty("java.io.tmpdir")
                + " (-Djava.io.tmpdir names another directory)");
        error.initCause(under);
        return error;
    }

    private static void loadFromJar() throws IOException {
        String machine = "linux-" + System.getProperty("os.arch");
        Properties index = new Properties();
        try (InputStream in = NativeLibrary.class.getResourceAsStream(INDEX)) {
            if (in == null) {
                throw new IOException("there is none in this jar");
            }
            index.load(in);
        }
        String resource = index.getProperty(machine + ".path");
        String hash = index.getProperty(machine + ".sha256");
        if (resource == null || hash == null) {
            throw new IOException("there is none for " + machine + " in this jar");
        }
        Path directory = Files.createTempDirectory("cairn-jni-",
                PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
        Path file = directory.resolve("libcairn_jni.so");
        try {
            extract(resource, hash, file);
            System.load(file.toString());
        } catch (UnsatisfiedLinkError e) {
            throw failed(e.getMessage(), e);
        } finally {
            // Once it is loaded, its name is of no use.
            Files.deleteIfExists(file);
            Files.deleteIfExists(directory);
        }
    }

    private static void extract(String resource, String hash, Path file) throws IOException {
        MessageDigest digest;
        try {
            digest = MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new IOException(e);
        }
        try (InputStream in = NativeLibrary.class.getResourceAsStream(resource);
                OutputStream out = Files.newOutputStream(file)) {
            if (in == null) {
                throw new IOException(resource + " is not in this jar");
            }
            byte[] part = new byte[1 << 16];
            for (int got = in.read(part); got >= 0; got = in.read(part)) {
                digest.update(part, 0, got);
                out.write(part, 0, got);
            }
        }
        StringBuilder found = new StringBuilder();
        for (byte one : digest.digest()) {
            found.append(String.format("%02x", one));
        }
        if (!hash.contentEquals(found)) {
            throw new IOException(resource + " is damaged, or of another jar: its hash is " + found);
        }
    }
}
