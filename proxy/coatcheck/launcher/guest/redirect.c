#include "redirect.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "identity.h"
#include "netlink.h"

/* The rules, in nft's words (one chain for each identity, I its number, U its uid):
 *
 *   table inet coatcheck {
 *     chain redirect { type nat hook output priority -100;
 *       meta skuid U goto identityI
 *       ip daddr 127.0.0.0/8 return           # the agent itself, for ports that the host reaches
 *       ip6 daddr ::1 return
 *       meta l4proto tcp redirect to :1       # closed: refused at once, whoever it is
 *     }
 *     chain identityI {
 *       meta l4proto { tcp, udp } th dport 53 redirect to :RESOLVER
 *       ip daddr 169.254.0.0/16 tcp dport 80 redirect to :METADATA
 *       ip daddr 127.0.0.0/8 tcp dport 3128 redirect to :PROXY
 *       meta l4proto { tcp, udp } th dport 61000-61031 redirect to :1   # nobody gets to another's ports
 *       ip daddr 127.0.0.0/8 return
 *       ip6 daddr ::1 return
 *       meta l4proto tcp redirect to :TRANSPARENT
 *     }
 *     chain close { type filter hook output priority 0; policy drop;    # sees what the redirect made of it
 *       ip daddr 127.0.0.0/8 accept
 *       ip6 daddr ::1 accept
 *     }
 *   }
 *
 * Written as netlink messages by ourselves: no nft program is needed in the image, and none is started at boot. */

#define TABLE "coatcheck"
#define CLOSED_PORT 1

static struct netlink batch;
static size_t expressions;

/* ------------------------------------------------------------------------------- expressions */

static size_t expression(const char *name, size_t *data)
{
    size_t element = netlink_nest(&batch, NFTA_LIST_ELEM);
    netlink_put_text(&batch, NFTA_EXPR_NAME, name);
    *data = netlink_nest(&batch, NFTA_EXPR_DATA);
    return element;
}

static void done(size_t element, size_t data)
{
    netlink_close(&batch, data);
    netlink_close(&batch, element);
}

static void compare(uint32_t operation, const void *value, size_t length)
{
    size_t data, element = expression("cmp", &data);
    netlink_put_be32(&batch, NFTA_CMP_SREG, NFT_REG_1);
    netlink_put_be32(&batch, NFTA_CMP_OP, operation);
    size_t nest = netlink_nest(&batch, NFTA_CMP_DATA);
    netlink_put(&batch, NFTA_DATA_VALUE, value, length);
    netlink_close(&batch, nest);
    done(element, data);
}

static void meta(uint32_t key, const void *value, size_t length)
{
    size_t data, element = expression("meta", &data);
    netlink_put_be32(&batch, NFTA_META_DREG, NFT_REG_1);
    netlink_put_be32(&batch, NFTA_META_KEY, key);
    done(element, data);
    compare(NFT_CMP_EQ, value, length);
}

static void load(uint32_t base, uint32_t offset, uint32_t length)
{
    size_t data, element = expression("payload", &data);
    netlink_put_be32(&batch, NFTA_PAYLOAD_DREG, NFT_REG_1);
    netlink_put_be32(&batch, NFTA_PAYLOAD_BASE, base);
    netlink_put_be32(&batch, NFTA_PAYLOAD_OFFSET, offset);
    netlink_put_be32(&batch, NFTA_PAYLOAD_LEN, length);
    done(element, data);
}

static void protocol(uint8_t number)
{
    meta(NFT_META_L4PROTO, &number, 1);
}

static void port(in_port_t first, in_port_t last)
{
    in_port_t from = htons(first), to = htons(last);
    load(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2);
    compare(first == last ? NFT_CMP_EQ : NFT_CMP_GTE, &from, 2);
    if (first != last)
        compare(NFT_CMP_LTE, &to, 2);
}

/* `length` first bytes of an IPv4 destination. */
static void to_four(const char *bytes, uint32_t length)
{
    uint8_t four = NFPROTO_IPV4;
    meta(NFT_META_NFPROTO, &four, 1);
    load(NFT_PAYLOAD_NETWORK_HEADER, 16, length);
    compare(NFT_CMP_EQ, bytes, length);
}

static void to_six_loopback(void)
{
    uint8_t six = NFPROTO_IPV6;
    meta(NFT_META_NFPROTO, &six, 1);
    load(NFT_PAYLOAD_NETWORK_HEADER, 24, 16);
    compare(NFT_CMP_EQ, &in6addr_loopback, 16);
}

static void redirect(in_port_t target)
{
    in_port_t number = htons(target);
    size_t data, element = expression("immediate", &data);
    netlink_put_be32(&batch, NFTA_IMMEDIATE_DREG, NFT_REG_1);
    size_t nest = netlink_nest(&batch, NFTA_IMMEDIATE_DATA);
    netlink_put(&batch, NFTA_DATA_VALUE, &number, 2);
    netlink_close(&batch, nest);
    done(element, data);
    element = expression("redir", &data);
    netlink_put_be32(&batch, NFTA_REDIR_REG_PROTO_MIN, NFT_REG_1);
    done(element, data);
}

static void verdict(int32_t code, const char *chain)
{
    size_t data, element = expression("immediate", &data);
    netlink_put_be32(&batch, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
    size_t nest = netlink_nest(&batch, NFTA_IMMEDIATE_DATA), inner = netlink_nest(&batch, NFTA_DATA_VERDICT);
    netlink_put_be32(&batch, NFTA_VERDICT_CODE, (uint32_t)code);
    if (chain)
        netlink_put_text(&batch, NFTA_VERDICT_CHAIN, chain);
    netlink_close(&batch, inner);
    netlink_close(&batch, nest);
    done(element, data);
}

/* ------------------------------------------------------------------------------- messages */

static void message(uint16_t type, uint16_t flags)
{
    struct nfgenmsg header = {.nfgen_family = NFPROTO_INET, .version = NFNETLINK_V0};
    netlink_message(&batch, (uint16_t)(NFNL_SUBSYS_NFTABLES << 8 | type), flags, &header, sizeof header);
}

static void edge(uint16_t type)
{
    struct nfgenmsg header = {.version = NFNETLINK_V0, .res_id = htons(NFNL_SUBSYS_NFTABLES)};
    netlink_message(&batch, type, 0, &header, sizeof header);
}

static void chain(const char *name, const char *type, int32_t priority, uint32_t policy)
{
    message(NFT_MSG_NEWCHAIN, NLM_F_CREATE);
    netlink_put_text(&batch, NFTA_CHAIN_TABLE, TABLE);
    netlink_put_text(&batch, NFTA_CHAIN_NAME, name);
    if (!type)
        return;
    size_t hook = netlink_nest(&batch, NFTA_CHAIN_HOOK);
    netlink_put_be32(&batch, NFTA_HOOK_HOOKNUM, NF_INET_LOCAL_OUT);
    netlink_put_be32(&batch, NFTA_HOOK_PRIORITY, (uint32_t)priority);
    netlink_close(&batch, hook);
    netlink_put_be32(&batch, NFTA_CHAIN_POLICY, policy);
    netlink_put_text(&batch, NFTA_CHAIN_TYPE, type);
}

static void rule(const char *chain_name, uint16_t flags)
{
    message(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND | flags);
    netlink_put_text(&batch, NFTA_RULE_TABLE, TABLE);
    netlink_put_text(&batch, NFTA_RULE_CHAIN, chain_name);
    expressions = netlink_nest(&batch, NFTA_RULE_EXPRESSIONS);
}

static void end_rule(void)
{
    netlink_close(&batch, expressions);
}

static void loopback_rules(const char *chain_name, int32_t code, uint16_t flags)
{
    rule(chain_name, 0);
    to_four("\x7f", 1);
    verdict(code, NULL);
    end_rule();
    rule(chain_name, flags);
    to_six_loopback();
    verdict(code, NULL);
    end_rule();
}

static void port_rules(const char *chain_name, in_port_t first, in_port_t last, in_port_t target)
{
    static const uint8_t protocols[] = {IPPROTO_TCP, IPPROTO_UDP};
    for (unsigned at = 0; at < sizeof protocols; at++) {
        rule(chain_name, 0);
        protocol(protocols[at]);
        port(first, last);
        redirect(target);
        end_rule();
    }
}

static void tcp_rule(const char *chain_name, const char *prefix, uint32_t length, in_port_t from, in_port_t target)
{
    rule(chain_name, 0);
    if (prefix)
        to_four(prefix, length);
    protocol(IPPROTO_TCP);
    if (from)
        port(from, from);
    redirect(target);
    end_rule();
}

static void identity_rules(unsigned which)
{
    char name[32];
    snprintf(name, sizeof name, "identity%u", which);
    port_rules(name, 53, 53, port_of(which, RESOLVER));
    tcp_rule(name, "\xa9\xfe", 2, 80, port_of(which, METADATA));
    tcp_rule(name, "\x7f", 1, 3128, port_of(which, PROXY));
    port_rules(name, FIRST_PORT, FIRST_PORT + PORTS_EACH * MAX_IDENTITIES - 1, CLOSED_PORT);
    loopback_rules(name, NFT_RETURN, 0);
    tcp_rule(name, NULL, 0, 0, port_of(which, TRANSPARENT));
}

bool redirect_rules(void)
{
    char name[32];
    batch.length = batch.number = 0;
    edge(NFNL_MSG_BATCH_BEGIN);
    message(NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL);
    netlink_put_text(&batch, NFTA_TABLE_NAME, TABLE);
    chain("redirect", "nat", -100, NF_ACCEPT);
    chain("close", "filter", 0, NF_DROP);
    for (unsigned which = 0; which < identities_count(); which++) {
        snprintf(name, sizeof name, "identity%u", which);
        chain(name, NULL, 0, 0);
    }
    for (unsigned which = 0; which < identities_count(); which++) {
        uint32_t uid = identity_at(which)->uid;
        snprintf(name, sizeof name, "identity%u", which);
        rule("redirect", 0);
        meta(NFT_META_SKUID, &uid, sizeof uid);
        verdict(NFT_GOTO, name);
        end_rule();
        identity_rules(which);
    }
    loopback_rules("redirect", NFT_RETURN, 0);
    tcp_rule("redirect", NULL, 0, 0, CLOSED_PORT);
    /* The last one is acknowledged, after all before it: older kernels do not acknowledge a batch's end. */
    loopback_rules("close", NF_ACCEPT, NLM_F_ACK);
    edge(NFNL_MSG_BATCH_END);
    return netlink_send(&batch, NETLINK_NETFILTER);
}
