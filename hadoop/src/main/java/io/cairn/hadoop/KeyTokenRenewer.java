package io.cairn.hadoop;

import java.io.IOException;
import java.util.Date;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.token.SecretManager;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.security.token.TokenIdentifier;
import org.apache.hadoop.security.token.TokenRenewer;

/** A key ends when its certificate says, and nobody but the authority's owner makes another one: nothing is renewed, only told. */
public final class KeyTokenRenewer extends TokenRenewer {
    @Override
    public boolean handleKind(Text kind) {
        return KeyTokenIdentifier.KIND.equals(kind);
    }

    /** YARN neither renews it nor cancels it with the job. */
    @Override
    public boolean isManaged(Token<?> token) {
        return false;
    }

    /** When the key ends. */
    @Override
    public long renew(Token<?> token, Configuration conf) throws IOException {
        KeyTokenIdentifier of = identifier(token);
        if (of.getMaxDate() <= System.currentTimeMillis()) {
            throw new SecretManager.InvalidToken("the key " + of.getOwner() + " of " + token.getService() + " ended at "
                    + new Date(of.getMaxDate()).toInstant() + "; submit the job with one that counts longer (cairn key client --days)");
        }
        return of.getMaxDate();
    }

    @Override
    public void cancel(Token<?> token, Configuration conf) throws IOException {
        throw new IOException("the key " + identifier(token).getOwner() + " of " + token.getService() + " is not taken away with a token; "
                + "take the key away (cairn admin key revoke " + identifier(token).getOwner() + "), or wait until it ends");
    }

    static KeyTokenIdentifier identifier(Token<?> token) throws IOException {
        TokenIdentifier found = token.decodeIdentifier();
        if (found instanceof KeyTokenIdentifier) {
            return (KeyTokenIdentifier) found;
        }
        throw new IOException("the token " + token.getKind() + " of " + token.getService() + " carries no key of Cairn; get it anew");
    }
}
