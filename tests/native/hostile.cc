// Whatever bytes another member left in the shared words: no call writes or reads outside the files, and each returns.
// The files lie between forbidden pages, so a step outside ends the program.
#include "arena.h"

namespace {

// Calls everything once, with a slice that is over at once: nothing here may wait for what will never come.
void call_everything(Arena& arena, const View& view, Random& random) {
  Drawn drawn(8);
  for (int64_t& slot : drawn.index) slot = static_cast<int64_t>(random.below(view.capacity));
  for (int64_t& stamp : drawn.generation) stamp = static_cast<int64_t>(random.next());
  read_slots(view, drawn.batch(), 0);
  for (int64_t slot = 0; slot < view.capacity; ++slot) public_generation(view, slot);
  for (uint32_t lane = 0; lane < view.lane_count; ++lane) {
    write_records(view, {Stamped::of(1), Stamped::of(2)}, lane, 0);
    end_trajectory(view, lane, 0);
    lease_lane(view, lane);
    give_back_lane(view, lane);
  }
  lease_lane(view, -1);
  draw_uniform(view, random, drawn.batch(), 0);
  mark_records(view, drawn.index, nullptr, drawn.uids, 1, 0);
  size(view, arena.live_lock().c_str());
  write_count(view);
  empty(view, random.below(2), 0);
  ring_records(view);
  leave_bell(view.control->records_bell.semaphore, enter_bell(view.control->records_bell.semaphore));
  reap(view, arena.live_lock().c_str());
}

// Random bytes, often small numbers, all ones or tokens: those reach deeper than noise.
void scribble(uint8_t* begin, size_t bytes, Random& random, uint32_t token) {
  for (size_t offset = 0; offset + 8 <= bytes; offset += 8) {
    uint64_t value = random.next();
    switch (random.below(6)) {
      case 0: continue;
      case 1: value %= 200; break;
      case 2: value = ~uint64_t{0}; break;
      case 3: value = uint64_t{token} << 32 | token; break;
      case 4: value = uint64_t{1} << random.below(64); break;
      default: break;
    }
    std::memcpy(begin + offset, &value, 8);
  }
}

}  // namespace

TEST(no_bytes_in_the_slots_lead_outside) {
  Random random(7);
  for (int64_t round = 0; round < check::rounds(400, 20'000); ++round) {
    Arena arena(6, 3, random.below(2) ? kOneLock | kLimiter : 0);
    auto client = arena.join();
    for (auto [begin, bytes] : arena.slots()) scribble(begin, bytes, random, client->view.token);
    call_everything(arena, client->view, random);
  }
}

TEST(no_bytes_in_the_lanes_lead_outside) {
  Random random(8);
  for (int64_t round = 0; round < check::rounds(400, 20'000); ++round) {
    Arena arena(6, 3, random.below(2) ? kOneLock | kLimiter : 0);
    auto client = arena.join();
    const View& view = client->view;
    write_records(view, {Stamped::of(1), Stamped::of(2)});
    scribble(reinterpret_cast<uint8_t*>(view.lanes), sizeof(LaneBlock) * view.lane_count, random, view.token);
    call_everything(arena, view, random);
  }
}

TEST(no_bytes_in_the_control_block_lead_outside) {
  Random random(9);
  for (int64_t round = 0; round < check::rounds(400, 20'000); ++round) {
    Arena arena(6, 3, random.below(2) ? kOneLock | kLimiter : 0);
    auto client = arena.join();
    write_records(client->view, {Stamped::of(1), Stamped::of(2)});
    scribble(arena.ctl().at(0), sizeof(ControlBlock), random, client->view.token);
    arena.control()->state = kReadyState;
    call_everything(arena, client->view, random);
  }
}

TEST(no_bytes_in_the_client_entries_lead_outside) {
  Random random(10);
  for (int64_t round = 0; round < check::rounds(200, 5'000); ++round) {
    Arena arena(6, 3);
    auto client = arena.join();
    scribble(reinterpret_cast<uint8_t*>(client->view.clients), Arena::kClients * sizeof(ClientBlock), random,
             client->view.token);
    call_everything(arena, client->view, random);
    // Whoever comes next recovers what those entries claim.
    arena.join();
  }
}

TEST(a_journal_stores_nowhere_but_in_its_file) {
  Random random(11);
  for (int64_t round = 0; round < check::rounds(2'000, 100'000); ++round) {
    Arena arena(6, 3);
    auto client = arena.join();
    JournalBlock& journal = client->view.lanes[0].journal;
    journal.count = random.below(2) ? random.below(9) : random.next();
    for (JournalEntry& entry : journal.entries) {
      entry.offset = random.below(2) ? random.next() : arena.ctl_bytes() - 16 + random.below(40);
      entry.value = random.next();
    }
    apply_journal(client->view, journal);
  }
}
