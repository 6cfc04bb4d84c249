// Every struct that lies in shared memory. shmrb/segment/FORMAT.md states the same bytes in prose, and a test holds the
// two together. Offsets only, never pointers; hot words 128 bytes apart (two cache lines: adjacent-line prefetch).
#pragma once

#include <cstddef>
#include <cstdint>

namespace shmrb {

constexpr uint32_t kFormatNumber = 1;
constexpr uint64_t kControlMagic = 0x314c544352424d53ull;  // "SMBRCTL1" read little-endian

// ---- tokens: epoch:15 | client slot + 1:16; bit 31 belongs to a lock's waiters flag; 0 = nobody -------------------
constexpr uint32_t kWaitersBit = 0x8000'0000u;
constexpr uint32_t kEpochMask = 0x7fffu;
inline constexpr uint32_t make_token(uint32_t epoch, uint32_t slot) { return (epoch & kEpochMask) << 16 | (slot + 1); }
inline constexpr uint32_t token_epoch(uint32_t token) { return token >> 16 & kEpochMask; }
inline constexpr uint32_t token_slot(uint32_t token) { return (token & 0xffffu) - 1; }

// ---- slot word: generation:44 | revision:18 | void:1 | busy:1 -----------------------------------------------------
constexpr uint64_t kBusy64 = 1;
constexpr uint64_t kVoid64 = 2;
constexpr int kRevisionBits = 18;
constexpr uint64_t kRevisionMask = (1ull << kRevisionBits) - 1;
inline constexpr uint64_t make_word(uint64_t generation, uint64_t revision, uint64_t flags) {
  return generation << (kRevisionBits + 2) | (revision & kRevisionMask) << 2 | flags;
}
inline constexpr uint64_t word_generation(uint64_t word) { return word >> (kRevisionBits + 2); }
inline constexpr uint64_t word_revision(uint64_t word) { return word >> 2 & kRevisionMask; }
inline constexpr bool word_busy(uint64_t word) { return word & kBusy64; }
inline constexpr bool word_void(uint64_t word) { return word & kVoid64; }
// Written at least once, whole, and not reclaimed. Whether its ticket is live is the lane's to say.
inline constexpr bool word_whole(uint64_t word) { return word_generation(word) != 0 && !(word & (kBusy64 | kVoid64)); }

// ---- run word: first:1 | last:1 | number:30 -----------------------------------------------------------------------
constexpr uint32_t kRunFirst = 0x8000'0000u;
constexpr uint32_t kRunLast = 0x4000'0000u;
constexpr uint32_t kRunNumberMask = 0x3fff'ffffu;

// A lock: the owner's token is the word. `since_ns` (monotonic) is a label for error messages.
struct LockBlock {
  uint32_t word;
  uint32_t dirty;  // set while what the lock guards is between two consistent states that no journal restores
  uint64_t since_ns;
};
static_assert(sizeof(LockBlock) == 16);

// Redo journal of a lock's owner: entries are filled, `count` is published, the stores are made, `count` is zeroed.
// Whoever takes the lock over makes the stores again.
struct JournalEntry {
  uint64_t offset;  // of an 8-byte word, from the start of the ctl file
  uint64_t value;
};
struct JournalBlock {
  uint64_t count;
  JournalEntry entries[7];
};
static_assert(sizeof(JournalBlock) == 120);

// Each word: waiting:32 | event:32. `semaphore` counts those that wait on the semaphore, `futex` those that cannot open
// it and sleep on its event half, the first four bytes (little-endian).
struct BellBlock {
  uint64_t semaphore;
  uint64_t futex;
};
static_assert(sizeof(BellBlock) == 16);

struct LimiterBlock {
  uint64_t enabled;
  uint64_t lifted;      // while 1 nothing is refused and nothing counted
  int64_t samples;      // loss-bearing records dispatched
  int64_t min_size;
  double samples_per_insert;
  double min_diff;
  double max_diff;
  int64_t uncounted;    // reserved rows that do not count as inserts: preloads, and rows reclaimed uncommitted
  int64_t lift_mark;    // rows reserved when the limits were lifted
  uint64_t opened_by;   // token of a consumer that has nothing to draw: one insert may pass the limits; 0 = shut
  uint64_t opened_times;
};
static_assert(sizeof(LimiterBlock) == 88);

struct PriorityBlock {
  double alpha;
  double beta;
  double eps;
  double max_priority;     // greatest raw priority seen, 0 before there is one
  int64_t max_slot;        // whose it is
  uint64_t within_buffer;  // 1: only records that are there count for it
  uint8_t reserved[208];
};
static_assert(sizeof(PriorityBlock) == 256);

// What consumption keeps beside its arrays, which lie in a file of their own.
struct ConsumptionBlock {
  int64_t members;     // records that may be drawn
  int64_t held;        // records that somebody has taken and not finished
  int64_t first;       // oldest record that is not consumed, slot + 1; 0 = none
  int64_t last;
  int64_t freed_head;  // slots ever taken from the queue of those that writes may fill, and ever put into it
  int64_t freed_tail;
  int64_t arrivals;    // records that ever came or were consumed
  uint64_t holders_stale;  // 1: a client died or left; whoever has the lock next looks for what it had taken
  uint64_t moving;         // Moving: what holds for the slots whose cost has kMovingBit
  int64_t pending;         // what the limiter was charged for records that are held: no room for others yet
  uint8_t reserved[48];
};
static_assert(sizeof(ConsumptionBlock) == 128);

// Counters of one client, and of all clients that left.
enum Counter : int {
  kWriteCalls = 0,
  kRecordsWritten,
  kSampleCalls,
  kRecordsSampled,
  kRedraws,
  kRowsUpdated,
  kStaleRows,
  kVersionsRejected,
  kUncheckedRows,
  kRefusedPriorities,
  kBlockedNs,
  kTakeOvers,
  kOverwrittenInCall,
  kCounters = 16,
};

// What happened to the buffer, whoever did it.
enum Event : int {
  kVoidedRecords = 0,      // records that died in a dead client's hands
  kReclaimedRecords,       // of those, the ones that were never published
  kLockTakeOvers,
  kClientsRecovered,
  kSlotsFreed,             // claims of dead clients that had changed nothing
  kEvents = 16,
};

struct ControlBlock {
  uint64_t magic;  // stored last by the creator
  uint32_t format;
  uint32_t state;  // BufferState
  uint8_t uuid[16];
  uint64_t generation_base;  // no generation below it is ever given
  uint64_t capacity;
  uint32_t lanes;
  uint32_t max_clients;
  int64_t created_ns;
  uint32_t clean;     // memory-mapped buffers: 1 while no member is attached
  uint32_t clients_high;  // client slots ever used: [0, clients_high)
  uint8_t boot[16];   // memory-mapped buffers: boot id of the last attach
  uint8_t reserved0[40];

  LockBlock control_lock;  // 128
  uint8_t reserved1[112];
  LockBlock empty_lock;  // 256
  uint8_t reserved2[112];
  BellBlock records_bell;  // 384: rung when a record was published
  uint8_t reserved3[112];
  BellBlock room_bell;  // 512: rung when the limiter may admit an insert
  uint8_t reserved4[112];
  LimiterBlock limiter;  // 640
  uint8_t reserved5[40];
  JournalBlock journal;  // 768: of the control lock
  uint8_t reserved6[8];
  PriorityBlock priorities;  // 896
  ConsumptionBlock consumption;  // 1152
  uint64_t events[kEvents];  // 1280
  uint64_t retired[kCounters];  // 1408: counters of clients that left
  uint8_t reserved7[4096 - 1536];
};
static_assert(offsetof(ControlBlock, control_lock) == 128);
static_assert(offsetof(ControlBlock, empty_lock) == 256);
static_assert(offsetof(ControlBlock, records_bell) == 384);
static_assert(offsetof(ControlBlock, room_bell) == 512);
static_assert(offsetof(ControlBlock, limiter) == 640);
static_assert(offsetof(ControlBlock, journal) == 768);
static_assert(offsetof(ControlBlock, priorities) == 896);
static_assert(offsetof(ControlBlock, consumption) == 1152);
static_assert(offsetof(ControlBlock, events) == 1280);
static_assert(offsetof(ControlBlock, retired) == 1408);
static_assert(sizeof(ControlBlock) == 4096);

enum BufferState : uint32_t { kReadyState = 1, kDeadState = 2 };

// One client slot. Only `epoch` and the lock byte decide who is alive; the rest are labels and counters.
struct ClientBlock {
  uint32_t epoch;
  uint32_t pid;  // as the client sees itself: a label
  uint32_t role;
  uint32_t waiting_for;  // WaitLabel
  int64_t attached_ns;   // realtime
  int64_t waiting_since_ns;  // monotonic
  int64_t in_flight;     // rows reserved by this client and not yet published
  uint32_t duties;       // 1 has written, 2 has sampled
  uint32_t changing;     // calls under way that have slots in hand which `in_flight` does not count
  char name[64];
  uint8_t reserved1[16];
  uint64_t counters[kCounters];  // 128
};
static_assert(offsetof(ClientBlock, counters) == 128);
static_assert(sizeof(ClientBlock) == 256);

struct LaneBlock {
  LockBlock lock;
  uint32_t lease;        // token of the client that may write this lane, 0 = free
  uint32_t last_writer;  // token of whoever reserved the lane's last ticket
  uint32_t next_run;     // number of the next run
  uint32_t open_run;     // number of the run the last ticket belongs to
  uint32_t run_ended;    // 1: the last ticket ended its trajectory
  uint32_t holes_stale;  // 1: somebody voided a slot; the next reader of `holes` counts anew
  int64_t holes;         // void slots among the live tickets
  int64_t written_ns;    // realtime of the last reservation
  uint64_t open_trajectory;  // the last ticket's trajectory id, hashed; only with an id field
  int64_t marked;        // while it is above head: slots of the tickets between are claimed, head does not count them
  uint8_t reserved0[56];
  int64_t head;  // 128: next ticket
  int64_t floor;  // lowest ticket that `empty` left alive; a multiple of lane_capacity
  int64_t written_offset;  // rows ever reserved = head + written_offset
  uint8_t reserved1[104];
  JournalBlock journal;  // 256
  uint8_t reserved2[8];
};
static_assert(offsetof(LaneBlock, head) == 128);
static_assert(offsetof(LaneBlock, journal) == 256);
static_assert(sizeof(LaneBlock) == 384);

}  // namespace shmrb
