package io.cairn.hadoop;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.token.DtFetcher;
import org.apache.hadoop.security.token.Token;

/** For {@code hadoop dtutil get cairn://…}: where Hadoop has no Kerberos, no job asks for tokens by itself. */
public final class KeyTokenFetcher implements DtFetcher {
    @Override
    public Text getServiceName() {
        return new Text(CairnFileSystem.SCHEME);
    }

    /** Hadoop's own security says nothing about that of Cairn. */
    @Override
    public boolean isTokenRequired() {
        return true;
    }

    @Override
    public Token<?> addDelegationTokens(Configuration conf, Credentials credentials, String renewer, String url)
            throws IOException {
        String prefix = CairnFileSystem.SCHEME + "://";
        FileSystem fs = FileSystem.get(URI.create(url.startsWith(prefix) ? url : prefix + url), conf);
        Token<?> token = fs.getDelegationToken(renewer);
        if (token == null) {
            throw new IOException(url + ": no key is shown to this cluster, so there is none for a token; "
                    + "name the file of a client's key by $CAIRN_KEY, or go on without a token if the cluster requires no keys");
        }
        credentials.addToken(token.getService(), token);
        return token;
    }
}
