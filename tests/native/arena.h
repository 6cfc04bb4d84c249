// A segment in this process's memory, with pages before and behind each file that nobody may touch, and clients of it:
// each has a lock byte, a token and a view of its own, as a process would.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "check.h"
#include "segment.h"

using namespace shmrb;

// Bytes that end where a forbidden page begins. What lies between them and the forbidden page before is zero, and is still
// zero at the end: who stepped out to the left by less than a page shows there.
class Fenced {
 public:
  explicit Fenced(size_t bytes) : pages_((bytes + kPage - 1) / kPage * kPage) {
    base_ = static_cast<uint8_t*>(
        mmap(nullptr, pages_ + 2 * kPage, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    CHECK(base_ != MAP_FAILED);
    CHECK(mprotect(base_ + kPage, pages_, PROT_READ | PROT_WRITE) == 0);
    begin_ = base_ + kPage + (pages_ - bytes);
  }
  ~Fenced() {
    for (const uint8_t* byte = base_ + kPage; byte < begin_; ++byte) CHECK(*byte == 0);
    munmap(base_, pages_ + 2 * kPage);
  }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  uint8_t* at(size_t offset) const { return begin_ + offset; }

 private:
  static constexpr size_t kPage = 4096;
  size_t pages_;
  uint8_t* base_;
  uint8_t* begin_;
};

// What a record of these tests holds: everything follows from uid and mark, so that a torn one shows.
struct Stamped {
  static constexpr int kWords = 8;
  int64_t uid = 0;
  int64_t mark = 0;
  int64_t echo = 0;
  int64_t body[kWords] = {};

  static int64_t echo_of(int64_t uid, int64_t mark) { return mark * 1'000'003 + uid; }
  static Stamped of(int64_t uid, int64_t mark = 0) {
    Stamped record;
    record.uid = uid;
    record.mark = mark;
    record.echo = echo_of(uid, mark);
    for (int k = 0; k < kWords; ++k) record.body[k] = uid * 31 + k;
    return record;
  }
  bool whole() const {
    for (int k = 0; k < kWords; ++k)
      if (body[k] != uid * 31 + k) return false;
    return echo == echo_of(uid, mark);
  }
};

// Room for a priority tree, each level between forbidden pages.
class TreeRoom {
 public:
  explicit TreeRoom(int64_t capacity) : capacity_(capacity), leaves_(lines(capacity, 8)) {
    int64_t nodes = capacity;
    do {
      nodes = (nodes + kFanOut - 1) / kFanOut;
      sums_.push_back(std::make_unique<Fenced>(lines(nodes, 8)));
      minima_.push_back(std::make_unique<Fenced>(lines(nodes, 4)));
    } while (nodes > 1);
  }

  PriorityTree tree() const {
    std::vector<double*> sums;
    std::vector<float*> minima;
    for (const auto& level : sums_) sums.push_back(reinterpret_cast<double*>(level->at(0)));
    for (const auto& level : minima_) minima.push_back(reinterpret_cast<float*>(level->at(0)));
    return {reinterpret_cast<uint64_t*>(leaves_.at(0)), std::move(sums), std::move(minima), capacity_};
  }

  // Each region and its size.
  std::vector<std::pair<uint8_t*, size_t>> regions() const {
    std::vector<std::pair<uint8_t*, size_t>> all{{leaves_.at(0), lines(capacity_, 8)}};
    int64_t nodes = capacity_;
    for (size_t level = 0; level < sums_.size(); ++level) {
      nodes = (nodes + kFanOut - 1) / kFanOut;
      all.emplace_back(sums_[level]->at(0), lines(nodes, 8));
      all.emplace_back(minima_[level]->at(0), lines(nodes, 4));
    }
    return all;
  }

 private:
  static size_t lines(int64_t count, size_t width) { return (count + kFanOut - 1) / kFanOut * kFanOut * width; }

  int64_t capacity_;
  Fenced leaves_;
  std::vector<std::unique_ptr<Fenced>> sums_, minima_;
};

// Columns: uid, mark, echo, body, done (one byte).
class Arena {
 public:
  static constexpr size_t kRowBytes[] = {8, 8, 8, 8 * Stamped::kWords, 1};
  static constexpr uint32_t kClients = 16;

  explicit Arena(int64_t capacity, uint32_t lanes = 1, uint32_t features = 0)
      : capacity_(capacity),
        lanes_(lanes),
        features_(features),
        ctl_(sizeof(ControlBlock) + kClients * sizeof(ClientBlock) + lanes * sizeof(LaneBlock)),
        words_(capacity * 8),
        owners_(capacity * 4),
        runs_(capacity * 4),
        versions_(capacity * 8),
        data_(capacity * row_bytes()) {
    char path[] = "/dev/shm/shmrb-native-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK(ftruncate(fd, kClients) == 0);
    close(fd);
    live_lock_ = path;
    control()->state = kReadyState;
    control()->priorities.alpha = 1;
    control()->priorities.beta = 1;
    if (features & kPriorities) tree_ = std::make_unique<TreeRoom>(capacity);
  }
  ~Arena() { unlink(live_lock_.c_str()); }

  // A view without a client slot.
  View look() const {
    View view;
    view.capacity = capacity_;
    view.lane_count = lanes_;
    view.lane_capacity = capacity_ / lanes_;
    view.max_clients = kClients;
    view.features = features_;
    view.writable = view.data_writable = true;
    view.control = control();
    view.clients = reinterpret_cast<ClientBlock*>(ctl_.at(sizeof(ControlBlock)));
    view.lanes = reinterpret_cast<LaneBlock*>(view.clients + kClients);
    view.words = reinterpret_cast<uint64_t*>(words_.at(0));
    view.owners = reinterpret_cast<uint32_t*>(owners_.at(0));
    view.runs = reinterpret_cast<uint32_t*>(runs_.at(0));
    view.versions = reinterpret_cast<int64_t*>(versions_.at(0));
    size_t offset = 0;
    for (size_t bytes : kRowBytes) {
      view.columns.push_back({data_.at(offset), bytes});
      offset += capacity_ * bytes;
    }
    view.done_columns = {4};
    if (tree_) view.tree = tree_->tree();
    return view;
  }

  std::unique_ptr<Segment> join() const {
    auto segment = std::make_unique<Segment>();
    segment->view = look();
    CHECK(segment->watch(live_lock_) == 0);
    CHECK(segment->attach(0, 1, 1, "thread").status == kOk);
    return segment;
  }

  ControlBlock* control() const { return reinterpret_cast<ControlBlock*>(ctl_.at(0)); }
  const std::string& live_lock() const { return live_lock_; }
  const Fenced& ctl() const { return ctl_; }
  // Each array of the slots and its size.
  std::vector<std::pair<uint8_t*, size_t>> slots() const {
    auto bytes = static_cast<size_t>(capacity_);
    return {{words_.at(0), bytes * 8}, {owners_.at(0), bytes * 4}, {runs_.at(0), bytes * 4}, {versions_.at(0), bytes * 8}};
  }
  size_t ctl_bytes() const { return sizeof(ControlBlock) + kClients * sizeof(ClientBlock) + lanes_ * sizeof(LaneBlock); }
  const TreeRoom& tree() const { return *tree_; }

 private:
  static constexpr size_t row_bytes() {
    size_t sum = 0;
    for (size_t bytes : kRowBytes) sum += bytes;
    return sum;
  }

  int64_t capacity_;
  uint32_t lanes_;
  uint32_t features_;
  Fenced ctl_, words_, owners_, runs_, versions_, data_;
  std::unique_ptr<TreeRoom> tree_;
  std::string live_lock_;
};

inline int64_t soon() { return monotonic_ns() + 50'000'000; }

// Repeats a call while its slice is over.
template <typename Call>
Outcome finish(Call call) {
  for (;;) {
    Outcome outcome = call();
    if (outcome.status != kAgain) return outcome;
  }
}

inline Outcome write_records(const View& view, const std::vector<Stamped>& records, uint32_t lane = 0,
                             int64_t deadline_ns = soon()) {
  std::vector<int64_t> uids, marks, echoes, bodies;
  for (const Stamped& record : records) {
    uids.push_back(record.uid);
    marks.push_back(record.mark);
    echoes.push_back(record.echo);
    bodies.insert(bodies.end(), record.body, record.body + Stamped::kWords);
  }
  std::vector<uint8_t> done(records.size(), 0);
  auto bytes = [](const auto& column) { return reinterpret_cast<const uint8_t*>(column.data()); };
  const uint8_t* columns[] = {bytes(uids), bytes(marks), bytes(echoes), bytes(bodies), bytes(done)};
  Rows rows{};
  rows.count = static_cast<int64_t>(records.size());
  rows.columns = columns;
  return append(view, lane, rows, 0, deadline_ns);
}

// A batch and the memory it goes to.
struct Drawn {
  explicit Drawn(int64_t count)
      : index(count), generation(count), uids(count), marks(count), echoes(count),
        bodies(count * Stamped::kWords), outputs{out(uids), out(marks), out(echoes), out(bodies), nullptr} {}

  Batch batch() {
    Batch batch{};
    batch.count = static_cast<int64_t>(index.size());
    batch.outputs = outputs;
    batch.index = index.data();
    batch.generation = generation.data();
    return batch;
  }
  Stamped record(size_t i) const {
    Stamped record;
    record.uid = uids[i];
    record.mark = marks[i];
    record.echo = echoes[i];
    std::memcpy(record.body, &bodies[i * Stamped::kWords], sizeof record.body);
    return record;
  }

  std::vector<int64_t> index, generation, uids, marks, echoes, bodies;
  uint8_t* outputs[5];

 private:
  static uint8_t* out(std::vector<int64_t>& column) { return reinterpret_cast<uint8_t*>(column.data()); }
};

// Gives those records those marks, by their handles; `generation` null: whatever is there.
inline Outcome mark_records(const View& view, const std::vector<int64_t>& index, const int64_t* generation,
                            const std::vector<int64_t>& uids, int64_t mark, int64_t deadline_ns = soon()) {
  std::vector<int64_t> marks(index.size(), mark), echoes;
  for (int64_t uid : uids) echoes.push_back(Stamped::echo_of(uid, mark));
  std::vector<uint8_t> verdicts(index.size());
  Patch patch{};
  patch.count = static_cast<int64_t>(index.size());
  patch.index = index.data();
  patch.generation = generation;
  patch.columns = {1, 2};
  patch.values = {reinterpret_cast<uint8_t*>(marks.data()), reinterpret_cast<uint8_t*>(echoes.data())};
  patch.verdicts = verdicts.data();
  return update(view, patch, deadline_ns);
}
