package io.cairn.hadoop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.Collections;
import java.util.Locale;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.Token;

/**
 * The key that is shown to a cluster: that of the file which {@code $CAIRN_KEY} names, else one that came with the job, in a token among the
 * credentials of the user, else the user's own file. Invariant: nothing here prints a key or writes it to a file; who keeps credentials does.
 */
final class Keys {
    private static final String VARIABLE = "CAIRN_KEY";
    private static final String PREFIX = CairnFileSystem.SCHEME + "://";
    private final byte[] cluster;
    private final Set<String> addresses;
    /** Tokens may come while a job runs. */
    private final UserGroupInformation user;

    /** @param cluster the managers; null: those that {@code $CAIRN_CLUSTER} names */
    Keys(byte[] cluster) throws IOException {
        this.cluster = cluster;
        String managers = cluster == null ? System.getenv("CAIRN_CLUSTER") : new String(cluster, StandardCharsets.UTF_8);
        addresses = addresses(managers);
        user = UserGroupInformation.getCurrentUser();
    }

    private static Set<String> addresses(String managers) {
        Set<String> all = new TreeSet<>();
        for (String one : managers.split(",")) {
            all.add(one.trim().toLowerCase(Locale.ENGLISH));
        }
        return all;
    }

    /** By which tokens of this cluster are known. */
    private Text service() {
        return new Text(PREFIX + String.join(",", addresses));
    }

    /** One that came with the job; null: none, or a file was named. */
    Token<?> handedOn() {
        String named = System.getenv(VARIABLE);
        if (named != null && !named.isEmpty()) {
            return null;
        }
        Collection<? extends Token<?>> all = user.getTokens();
        Token<?> found = null;
        for (Token<?> token : all) {
            if (!KeyTokenIdentifier.KIND.equals(token.getKind())) {
                continue;
            }
            if (service().equals(token.getService())) {
                return token;
            }
            String service = token.getService().toString();
            // Jobs may name other managers of the same cluster. The key is of no use to one that is not.
            boolean isSame = service.startsWith(PREFIX)
                    && !Collections.disjoint(addresses, addresses(service.substring(PREFIX.length())));
            found = isSame ? token : found;
        }
        return found;
    }

    /** What tells it from all others, and is none of it. */
    static String digest(Token<?> token) {
        try {
            byte[] sum = MessageDigest.getInstance("SHA-256").digest(token.getPassword());
            return Base64.getEncoder().encodeToString(sum);
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("every Java has SHA-256", e);
        }
    }

    /** Where it was found, for errors. */
    static byte[] from(Token<?> token) {
        return CairnBase.bytes("the token " + token.getKind() + " for " + token.getService());
    }

    /** Null: there are no tokens for this cluster, because no key is shown to it, or none that may be handed on. */
    String serviceName() {
        if (handedOn() != null) {
            return service().toString();
        }
        byte[] own = Native.ownKey(cluster);
        // What is wrong with a key is told where it is used.
        boolean isThere = own == null ? !Errors.last().is(Errors.EPERM) : own.length > 0;
        return isThere ? service().toString() : null;
    }

    /** Null: no key is shown. */
    Token<KeyTokenIdentifier> token(String renewer) throws IOException {
        Token<?> handed = handedOn();
        if (handed != null) {
            return new Token<>(handed.getIdentifier(), handed.getPassword(), handed.getKind(), service());
        }
        byte[] own = Errors.check(Native.ownKey(cluster), new Path(service() + "/"));
        return own.length == 0 ? null : token(Record.of(own), renewer, service());
    }

    private static Token<KeyTokenIdentifier> token(ByteBuffer own, String renewer, Text service) {
        long made = own.getLong() * 1000;
        long until = own.getLong() * 1000;
        String name = Record.shortText(own);
        byte[] text = Arrays.copyOfRange(own.array(), own.arrayOffset() + own.position(), own.arrayOffset() + own.limit());
        KeyTokenIdentifier identifier = new KeyTokenIdentifier(name, renewer, made, until);
        return new Token<>(identifier.getBytes(), text, KeyTokenIdentifier.KIND, service);
    }
}
