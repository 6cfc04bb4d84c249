// Threads as clients of one ring: what readers accept is whole, generations only grow, and nothing is lost or stuck.
#include <array>
#include <atomic>
#include <map>

#include "arena.h"

namespace {

constexpr int64_t kCapacity = 64;

// Draws until told to stop; each record must be whole, and what a slot shows must never go back.
class Reader {
 public:
  Reader(const View& view, uint64_t seed) : view_(view), random_(seed), drawn_(16) {}

  template <typename Look>
  void run(const uint32_t& stop, Look look) {
    while (!order::observe(&stop) || batches_ == 0) {
      Batch batch = drawn_.batch();
      Outcome outcome = draw_uniform(view_, random_, batch, soon());
      if (outcome.status == kEmpty || outcome.status == kAgain) continue;
      CHECK(outcome.status == kOk);
      ++batches_;
      auto before = newest_;  // rows of one batch come in any order: some were drawn again
      for (int64_t i = 0; i < batch.count; ++i) {
        int64_t slot = batch.index[i], generation = batch.generation[i];
        CHECK(view_.in_range(slot));
        CHECK(drawn_.record(i).whole());
        CHECK(generation >= before[slot]);
        if (generation > newest_[slot]) newest_[slot] = generation;
        look(drawn_.record(i), slot, generation);
      }
    }
  }
  int64_t batches() const { return batches_; }

 private:
  const View& view_;
  Random random_;
  Drawn drawn_;
  std::array<int64_t, kCapacity> newest_{};
  int64_t batches_ = 0;
};

void fill_twice(Arena& arena) {
  auto client = arena.join();
  const View& view = client->view;
  for (int64_t i = 0; i < 2 * kCapacity; ++i)
    CHECK(finish([&] { return write_records(view, {Stamped::of(1'000'000'000 + i)}); }).status == kOk);
  for (int64_t slot = 0; slot < kCapacity; ++slot) {
    CHECK(word_whole(view.words[slot]));
    CHECK(view.owners[slot] == 0);
  }
  CHECK(size(view, arena.live_lock().c_str()).value == kCapacity);
}

}  // namespace

// One slot, one writer, one reader: the payload never appears under another record's word.
TEST(a_reader_of_one_slot_sees_whole_records_in_order) {
  Arena arena(1);
  auto writer = arena.join(), reader = arena.join();
  int64_t rounds = check::rounds(200'000, 10'000'000);
  uint32_t stop = 0;
  int64_t accepted = 0;
  check::together({
      [&] {
        for (int64_t i = 0; i < rounds; ++i) CHECK(write_records(writer->view, {Stamped::of(i)}).value == i);
        order::publish(&stop, 1u);
      },
      [&] {
        const View& view = reader->view;
        int64_t last = -1;
        while (!order::observe(&stop)) {
          uint64_t word = order::observe(&view.words[0]);
          if (!word_whole(word)) continue;
          Stamped record;
          auto copy = [&](size_t column, auto* to) {
            order::copy_payload(to, view.columns[column].base, view.columns[column].row_bytes);
          };
          copy(0, &record.uid), copy(1, &record.mark), copy(2, &record.echo), copy(3, record.body);
          order::after_payload();
          if (order::peek(&view.words[0]) != word) continue;
          CHECK(record.whole());
          CHECK(record.uid == static_cast<int64_t>(word_generation(word)) - 1);
          CHECK(record.uid >= last);
          last = record.uid;
          ++accepted;
        }
      },
  });
  CHECK(accepted > 0);
}

// One record among holes, nearly always in its updater's hands: a draw waits or comes again, but there always is a record.
TEST(a_draw_of_a_record_that_changes_all_the_time_never_finds_nothing) {
  Arena arena(kCapacity);
  auto updater = arena.join(), reader = arena.join();
  const View& view = updater->view;
  for (int64_t i = 0; i < kCapacity; ++i) CHECK(write_records(view, {Stamped::of(i)}).status == kOk);
  for (int64_t slot = 1; slot < kCapacity; ++slot) view.words[slot] |= kVoid64;
  int64_t rounds = check::rounds(250'000, 2'000'000);
  uint32_t stop = 0;
  int64_t draws = 0;
  check::together({
      [&] {
        for (int64_t mark = 1; mark < rounds; ++mark)
          CHECK(mark_records(view, {0}, nullptr, {0}, mark).status == kOk);
        order::publish(&stop, 1u);
      },
      [&] {
        Random random(2);
        Drawn drawn(1);
        while (!order::observe(&stop)) {
          Outcome outcome = draw_uniform(reader->view, random, drawn.batch(), 0);
          CHECK(outcome.status == kOk || outcome.status == kAgain);
          if (outcome.status != kOk) continue;
          CHECK(drawn.index[0] == 0 && drawn.record(0).whole());
          ++draws;
        }
      },
  });
  CHECK(draws > 0);
}

TEST(what_one_writer_wrote_follows_from_slot_and_generation) {
  Arena arena(kCapacity);
  auto writer = arena.join(), reader = arena.join(), other = arena.join();
  int64_t rounds = check::rounds(40'000, 2'000'000);
  uint32_t stop = 0;
  auto read = [&](const View& view, uint64_t seed) {
    Reader looking(view, seed);
    looking.run(stop, [](const Stamped& record, int64_t slot, int64_t generation) {
      CHECK(record.uid == generation * kCapacity + slot);
    });
  };
  check::together({
      [&] {
        for (int64_t i = 0; i < rounds; i += 4) {
          auto records = {Stamped::of(i), Stamped::of(i + 1), Stamped::of(i + 2), Stamped::of(i + 3)};
          CHECK(write_records(writer->view, records).value == i);
        }
        order::publish(&stop, 1u);
      },
      [&] { read(reader->view, 1); },
      [&] { read(other->view, 2); },
  });
}

namespace {

// Everything at once on one ring. `deaths`: clients that die with locks and claims in hand.
void chaos(uint32_t features, bool deaths) {
  Arena arena(kCapacity, 1, features);
  int64_t rounds = check::rounds(10'000, 300'000);
  uint32_t stop = 0;
  std::atomic<int> writing{3};
  auto shared = arena.join();  // two writers and the updater are threads of one client
  std::vector<std::function<void()>> tasks;
  for (int64_t number = 0; number < 3; ++number) {
    tasks.emplace_back([&, number] {
      auto own = arena.join();
      const View& view = number == 0 ? own->view : shared->view;
      Random random(number);
      for (int64_t i = 0; i < rounds; ++i) {
        std::vector<Stamped> records;
        int64_t count = 1 + static_cast<int64_t>(random.below(6));
        for (int64_t k = 0; k < count; ++k) records.push_back(Stamped::of((i * 8 + k) * 3 + number));
        CHECK(finish([&] { return write_records(view, records); }).status == kOk);
      }
      if (--writing == 0) order::publish(&stop, 1u);
    });
  }
  for (uint64_t seed : {3, 4}) {
    tasks.emplace_back([&, seed] {
      auto client = arena.join();
      std::map<std::pair<int64_t, int64_t>, int64_t> known;
      Reader looking(client->view, seed);
      looking.run(stop, [&](const Stamped& record, int64_t slot, int64_t generation) {
        // A handle names one record for ever.
        auto [entry, fresh] = known.emplace(std::pair(slot, generation), record.uid);
        CHECK(fresh || entry->second == record.uid);
        if (known.size() > 10'000) known.clear();
      });
    });
  }
  tasks.emplace_back([&] {  // late results, by handles that may be stale
    const View& view = shared->view;
    Drawn drawn(8);
    Random random(5);
    for (int64_t mark = 1; !order::observe(&stop); ++mark) {
      if (draw_uniform(view, random, drawn.batch(), soon()).status != kOk) continue;
      Outcome outcome = finish(
          [&] { return mark_records(view, drawn.index, drawn.generation.data(), drawn.uids, mark); });
      CHECK(outcome.status == kOk);
    }
  });
  tasks.emplace_back([&] {  // empties, and watches that stamps and counts only grow
    auto client = arena.join();
    const View& view = client->view;
    std::vector<int64_t> stamps(kCapacity, -1);
    int64_t written = 0;
    for (int64_t i = 0; !order::observe(&stop); ++i) {
      if (i % 64 == 0) CHECK(finish([&] { return empty(view, false, soon()); }).status == kOk);
      for (int64_t slot = 0; slot < kCapacity; ++slot) {
        int64_t stamp = public_generation(view, slot);
        CHECK(stamp >= stamps[slot]);
        stamps[slot] = stamp;
      }
      int64_t rows = reserved_rows(view);
      CHECK(rows >= written);
      written = rows;
      int64_t records = size(view, arena.live_lock().c_str()).value;
      CHECK(records >= 0 && records <= kCapacity);
    }
  });
  tasks.emplace_back([&] {  // watches the same from outside
    auto client = arena.join();
    std::vector<int64_t> stamps(kCapacity, -1);
    int64_t written = 0;
    while (!order::observe(&stop)) {
      for (int64_t slot = 0; slot < kCapacity; ++slot) {
        int64_t stamp = public_generation(client->view, slot);
        CHECK(stamp >= stamps[slot]);
        stamps[slot] = stamp;
      }
      int64_t rows = reserved_rows(client->view);
      CHECK(rows >= written);
      written = rows;
    }
  });
  if (deaths) {
    tasks.emplace_back([&] {
      Random random(6);
      while (!order::observe(&stop)) {
        auto client = arena.join();
        const View& view = client->view;
        bool locked = try_lock(view.lock_of(0), view.token);
        for (int k = 0; k < 3; ++k) {
          auto slot = static_cast<int64_t>(random.below(kCapacity));
          if (claim_slot(view, slot) != 0 || random.below(2)) continue;
          uint64_t word = order::peek(&view.words[slot]);
          if (!word_whole(word)) continue;
          uint64_t marked = make_word(word_generation(word), word_revision(word) + 1, kBusy64);  // a change in place
          if (locked && random.below(2))  // a write: under the lock, so that no `empty` comes between look and mark
            marked = make_word(next_generation(view, word, !ticket_is_live(view, slot)), 0, kBusy64);
          order::publish(&view.words[slot], marked);
          order::before_payload();
          int64_t torn = -1;
          order::copy_payload(view.columns[0].base + slot * 8, &torn, 8);
        }
        if (locked && random.below(2)) release(view.lock_of(0));
        client->close();  // its byte goes; what it held stays behind
      }
    });
  }
  check::together(tasks);
  CHECK(shared->view.me()->in_flight == 0);
  fill_twice(arena);
}

}  // namespace

TEST(chaos_under_lane_locks) { chaos(0, false); }
TEST(chaos_under_the_control_lock) { chaos(kOneLock | kLimiter, false); }
TEST(chaos_with_deaths) { chaos(0, true); }
