; Thread team: worker threads that share the chunks of a parallel region with the thread that calls it.
;
; The caller publishes a region of `parts * per_part` chunks.  Each participant claims chunks from a counter: first those of its
; own part, so that a thread meets the same data in every kernel, then those that are left of the other parts.  So the caller
; finishes alone while the others are not scheduled, and waits only for chunks that a worker has begun.
;
; A chunk is claimed by a compare-and-swap on its part's counter, which also holds the epoch (number) of its region: a worker
; that comes late fails.  Only a participant with a claim reads the function and counts itself as done, so the caller may reuse
; them as soon as the number of chunks done is complete.
;
;   state       epoch << 16 | parts << 8 | chunks per part: the last region published
;   counter     epoch << 16 | next chunk of the part; of an older epoch: no chunk claimed yet
;   claimer     { state, own part, parts visited, chunks claimed } of a participant
;
; Idle workers spin, for a bounded time, then sleep on a futex.  All durations are in ticks of @ticks.
;
; How many threads share a call is decided in call_history.ll.

%task    = type { ptr, ptr }                      ; function, arguments
%claimer = type { i64, i64, i64, i64 }
%counter = type { i64, [15 x i64] }              ; alone on its pair of cache lines

@region     = internal global i64 0, align 128   ; state of the last region
@task       = internal global %task zeroinitializer, align 128
@done       = internal global i32 0, align 128   ; chunks done
@waiting    = internal global i32 0, align 4     ; 1 while the caller sleeps on @done
@lock       = internal global i32 0, align 128   ; 1 while a region runs
@calls      = internal global i32 0, align 128   ; calls of programs under way
@sleepers   = internal global i32 0, align 128   ; workers that sleep, or are about to
@borrowed   = internal global i32 0, align 128   ; OpenMP's workers that take part (openmp_workers.ll)
@borrowing  = internal global i32 0, align 128   ; 1 during a call in which they do
@last_end   = internal global i64 0, align 128   ; time at which the last measured call ended
@stopping   = internal global i32 0, align 4     ; 1 when workers must return
@counters   = internal global [256 x %counter] zeroinitializer, align 128

; Regions that waited for a worker that was put aside.
@preemptions = internal global i64 0, align 128

; Parameters, set by Python (see threads.py).
@tilewright_team = global [10 x i64] zeroinitializer, align 128

define internal i64 @parameter(i64 %k) {
  %p = getelementptr i64, ptr @tilewright_team, i64 %k
  %v = load atomic i64, ptr %p monotonic, align 8
  ret i64 %v
}

; Run `function(arguments, claimer, chunk, chunks)`, which claims further chunks until none is left, on `threads` threads of
; the team; if negative, on one until the time `-threads`, then on all.  At most `max_chunks` chunks.  The calling thread does
; the work alone if another region runs.
define void @tilewright_parallel(ptr %function, ptr %arguments, i64 %max_chunks, i64 %threads) {
entry:
  %claimer = alloca %claimer, align 8
  %has_deadline = icmp slt i64 %threads, 0
  br i1 %has_deadline, label %look, label %share

look:
  %time = call i64 @ticks()
  %late = add i64 %time, %threads
  %is_late = icmp sgt i64 %late, 0
  %all_threads = call i64 @parameter(i64 0)
  %rest = select i1 %is_late, i64 %all_threads, i64 1
  br label %share

share:
  %most_threads = phi i64 [ %threads, %entry ], [ %rest, %look ]
  %team = call i64 @llvm.smin.i64(i64 %most_threads, i64 %max_chunks)
  %shared = icmp sgt i64 %team, 1
  br i1 %shared, label %try_lock, label %alone

try_lock:
  %locked = cmpxchg ptr @lock, i32 0, i32 1 acquire monotonic
  %is_locked = extractvalue { i32, i1 } %locked, 1
  br i1 %is_locked, label %publish, label %alone

alone:
  call void %function(ptr %arguments, ptr null, i64 0, i64 1)
  ret void

publish:
  %begin = call i64 @ticks()
  %per_thread = call i64 @parameter(i64 1)
  %all = mul i64 %team, %per_thread
  %most = call i64 @llvm.smin.i64(i64 %all, i64 %max_chunks)
  %per_part = udiv i64 %most, %team
  %chunks = mul i64 %per_part, %team
  store ptr %function, ptr @task
  store ptr %arguments, ptr getelementptr (%task, ptr @task, i64 0, i32 1)
  store atomic i32 0, ptr @done monotonic, align 4
  store atomic i32 0, ptr @waiting monotonic, align 4
  %last = load atomic i64, ptr @region monotonic, align 8
  %last_epoch = lshr i64 %last, 16
  %epoch = add i64 %last_epoch, 1
  %high = shl i64 %epoch, 16
  %middle = shl i64 %team, 8
  %low = or i64 %middle, %per_part
  %state = or i64 %high, %low
  store atomic i64 %state, ptr @region seq_cst, align 8
  %sleepers = load atomic i32, ptr @sleepers seq_cst, align 4
  %any_asleep = icmp sgt i32 %sleepers, 0
  %borrowed = load atomic i32, ptr @borrowed monotonic, align 4
  %none_borrowed = icmp sle i32 %borrowed, 0
  %needed = and i1 %any_asleep, %none_borrowed
  br i1 %needed, label %wake, label %work

wake:
  call void @wake_workers(i64 %team)
  br label %work

work:
  call void @begin_claims(ptr %claimer, i64 %state, i64 0)
  %chunk = call i64 @tilewright_next_chunk(ptr %claimer)
  %none_left = icmp slt i64 %chunk, 0
  br i1 %none_left, label %worked, label %run

run:
  call void %function(ptr %arguments, ptr %claimer, i64 %chunk, i64 %chunks)
  br label %worked

worked:
  %end = call i64 @ticks()
  %claimed_slot = getelementptr %claimer, ptr %claimer, i64 0, i32 3
  %claimed = load i64, ptr %claimed_slot
  %claimed32 = trunc i64 %claimed to i32
  %chunks32 = trunc i64 %chunks to i32
  %done_before = atomicrmw add ptr @done, i32 %claimed32 seq_cst
  %done = add i32 %done_before, %claimed32
  %complete = icmp eq i32 %done, %chunks32
  br i1 %complete, label %release, label %wait

wait:
  %own = sub i64 %end, %begin
  %at_least_one = call i64 @llvm.umax.i64(i64 %claimed, i64 1)
  %per_chunk = udiv i64 %own, %at_least_one
  %spin = shl i64 %per_chunk, 1
  call void @wait_until_done(i32 %chunks32, i64 %spin)
  %now = call i64 @ticks()
  %waited = sub i64 %now, %end
  %preempted = call i64 @parameter(i64 4)
  %tolerated = call i64 @llvm.umax.i64(i64 %spin, i64 %preempted)
  %was_preempted = icmp ugt i64 %waited, %tolerated
  br i1 %was_preempted, label %count, label %release

count:
  call void @count_preemption()
  br label %release

release:
  store atomic i32 0, ptr @lock release, align 4
  ret void
}

; Count a wait for a worker that was put aside.
define internal void @count_preemption() {
  %preemptions = load atomic i64, ptr @preemptions monotonic, align 8
  %more_preemptions = add i64 %preemptions, 1
  store atomic i64 %more_preemptions, ptr @preemptions monotonic, align 8
  ret void
}

; Return the next chunk of the claimer's region, or -1 if none is left; -1 for a null claimer, who has all there is.
define i64 @tilewright_next_chunk(ptr %claimer) {
entry:
  %alone = icmp eq ptr %claimer, null
  br i1 %alone, label %none, label %start

start:
  %own_slot = getelementptr %claimer, ptr %claimer, i64 0, i32 1
  %visited_slot = getelementptr %claimer, ptr %claimer, i64 0, i32 2
  %claimed_slot = getelementptr %claimer, ptr %claimer, i64 0, i32 3
  %state = load i64, ptr %claimer
  %own = load i64, ptr %own_slot
  %first_visited = load i64, ptr %visited_slot
  %epoch = lshr i64 %state, 16
  %parts_high = lshr i64 %state, 8
  %parts = and i64 %parts_high, 255
  %per_part = and i64 %state, 255
  br label %visit

visit:
  %visited = phi i64 [ %first_visited, %start ], [ %next_visited, %exhausted ]
  %is_last = icmp uge i64 %visited, %parts
  br i1 %is_last, label %none, label %look

look:
  %unwrapped = add i64 %own, %visited
  %wrapped = sub i64 %unwrapped, %parts
  %too_far = icmp uge i64 %unwrapped, %parts
  %part = select i1 %too_far, i64 %wrapped, i64 %unwrapped
  %counter = getelementptr %counter, ptr @counters, i64 %part
  %loaded = load atomic i64, ptr %counter monotonic, align 8
  br label %try

try:
  %word = phi i64 [ %loaded, %look ], [ %seen, %lost ]
  %word_epoch = lshr i64 %word, 16
  %late = icmp ugt i64 %word_epoch, %epoch
  br i1 %late, label %none, label %in_time

in_time:
  %current = icmp eq i64 %word_epoch, %epoch
  %word_next = and i64 %word, 65535
  %index = select i1 %current, i64 %word_next, i64 0
  %left = icmp ult i64 %index, %per_part
  br i1 %left, label %claim, label %exhausted

exhausted:
  %following_part = add i64 %visited, 1
  %twice = shl i64 %visited, 1
  %farther = call i64 @llvm.umax.i64(i64 %twice, i64 1)
  %is_caller = icmp eq i64 %own, 0
  %next_visited = select i1 %is_caller, i64 %following_part, i64 %farther
  store i64 %next_visited, ptr %visited_slot
  br label %visit

claim:
  %following = add i64 %index, 1
  %epoch_bits = shl i64 %epoch, 16
  %new_word = or i64 %epoch_bits, %following
  %swapped = cmpxchg ptr %counter, i64 %word, i64 %new_word acq_rel monotonic
  %seen = extractvalue { i64, i1 } %swapped, 0
  %won = extractvalue { i64, i1 } %swapped, 1
  br i1 %won, label %claimed, label %lost

lost:
  br label %try

claimed:
  %before = load i64, ptr %claimed_slot
  %after = add i64 %before, 1
  store i64 %after, ptr %claimed_slot
  %base = mul i64 %part, %per_part
  %chunk = add i64 %base, %index
  ret i64 %chunk

none:
  ret i64 -1
}

define internal void @begin_claims(ptr %claimer, i64 %state, i64 %part) {
  %part_slot = getelementptr %claimer, ptr %claimer, i64 0, i32 1
  %visited_slot = getelementptr %claimer, ptr %claimer, i64 0, i32 2
  %claimed_slot = getelementptr %claimer, ptr %claimer, i64 0, i32 3
  store i64 %state, ptr %claimer
  store i64 %part, ptr %part_slot
  store i64 0, ptr %visited_slot
  store i64 0, ptr %claimed_slot
  ret void
}

; Wait until @done is `chunks`: spin for `limit` ticks, or until this thread was put aside, then sleep.
define internal void @wait_until_done(i32 %chunks, i64 %limit) {
entry:
  %preempted = call i64 @parameter(i64 4)
  %start = call i64 @ticks()
  br label %spin

spin:
  %last = phi i64 [ %start, %entry ], [ %now, %again ]
  %done = load atomic i32, ptr @done acquire, align 4
  %complete = icmp eq i32 %done, %chunks
  br i1 %complete, label %finished, label %again

again:
  call void @relax()
  %now = call i64 @ticks()
  %spun = sub i64 %now, %start
  %gap = sub i64 %now, %last
  %long = icmp ugt i64 %spun, %limit
  %was_preempted = icmp ugt i64 %gap, %preempted
  %give_up = or i1 %long, %was_preempted
  br i1 %give_up, label %announce, label %spin

announce:
  store atomic i32 1, ptr @waiting seq_cst, align 4
  br label %sleep

sleep:
  %value = load atomic i32, ptr @done seq_cst, align 4
  %is_complete = icmp eq i32 %value, %chunks
  br i1 %is_complete, label %finished, label %block

block:
  call void @futex_wait(ptr @done, i32 %value, i32 -1)
  br label %sleep

finished:
  ret void
}

; Main function of worker `argument`, 1 to 255.
define ptr @tilewright_worker(ptr %argument) {
entry:
  %claimer = alloca %claimer, align 8
  %mean_wait = alloca i64, align 8
  store i64 0, ptr %mean_wait
  %index = ptrtoint ptr %argument to i64
  br label %next

next:
  %seen = phi i64 [ 0, %entry ], [ %state, %look ], [ %state, %after ]
  %state = call i64 @wait_for_region(i64 %index, i64 %seen, ptr %mean_wait)
  %stopping = load atomic i32, ptr @stopping acquire, align 4
  %stop = icmp ne i32 %stopping, 0
  br i1 %stop, label %leave, label %look

look:
  %borrowed = load atomic i32, ptr @borrowed monotonic, align 4
  %is_needed = icmp sle i32 %borrowed, 0
  br i1 %is_needed, label %take_part, label %next

take_part:
  call void @run_chunks(i64 %state, i64 %index, ptr %claimer)
  br label %after

after:
  br label %next

leave:
  ret ptr null
}

; Run the chunks that a worker can claim of a region, if it has a part there.
define internal void @run_chunks(i64 %state, i64 %index, ptr %claimer) {
entry:
  %parts_high = lshr i64 %state, 8
  %parts = and i64 %parts_high, 255
  %takes_part = icmp ult i64 %index, %parts
  br i1 %takes_part, label %claim, label %finished

claim:
  call void @begin_claims(ptr %claimer, i64 %state, i64 %index)
  %chunk = call i64 @tilewright_next_chunk(ptr %claimer)
  %none_left = icmp slt i64 %chunk, 0
  br i1 %none_left, label %finished, label %run

run:
  %function = load ptr, ptr @task
  %arguments = load ptr, ptr getelementptr (%task, ptr @task, i64 0, i32 1)
  %per_part = and i64 %state, 255
  %chunks = mul i64 %parts, %per_part
  call void %function(ptr %arguments, ptr %claimer, i64 %chunk, i64 %chunks)
  %claimed_slot = getelementptr %claimer, ptr %claimer, i64 0, i32 3
  %claimed = load i64, ptr %claimed_slot
  %claimed32 = trunc i64 %claimed to i32
  %chunks32 = trunc i64 %chunks to i32
  %before = atomicrmw add ptr @done, i32 %claimed32 seq_cst
  %done = add i32 %before, %claimed32
  %complete = icmp eq i32 %done, %chunks32
  br i1 %complete, label %last, label %finished

last:
  %waiting = load atomic i32, ptr @waiting seq_cst, align 4
  %sleeps = icmp ne i32 %waiting, 0
  br i1 %sleeps, label %wake, label %finished

wake:
  call void @futex_wake(ptr @done, i32 -1)
  br label %finished

finished:
  ret void
}

; Return the state once it is not `seen`.  Spin during a call, and after it for twice the usual wait for the next; then sleep.
define internal i64 @wait_for_region(i64 %index, i64 %seen, ptr %mean_wait) {
entry:
  %longest = call i64 @parameter(i64 2)
  %shortest = call i64 @parameter(i64 3)
  %preempted = call i64 @parameter(i64 4)
  %mean = load i64, ptr %mean_wait
  %twice = shl i64 %mean, 1
  %usual_is_short = icmp ult i64 %mean, %longest
  %wanted = select i1 %usual_is_short, i64 %twice, i64 0
  %at_least = call i64 @llvm.smax.i64(i64 %wanted, i64 %shortest)
  %idle_limit = call i64 @llvm.smin.i64(i64 %at_least, i64 %longest)
  %start = call i64 @ticks()
  br label %spin

spin:
  %last = phi i64 [ %start, %entry ], [ %now, %again ]
  %between_calls = phi i1 [ 0, %entry ], [ %now_between, %again ]
  %state = load atomic i64, ptr @region acquire, align 8
  %published = icmp ne i64 %state, %seen
  br i1 %published, label %arrived, label %again

again:
  call void @relax()
  %now = call i64 @ticks()
  %spun = sub i64 %now, %start
  %gap = sub i64 %now, %last
  %calls = load atomic i32, ptr @calls monotonic, align 4
  %in_call = icmp sgt i32 %calls, 0
  %is_idle = xor i1 %in_call, 1
  %now_between = or i1 %between_calls, %is_idle
  %limit = select i1 %in_call, i64 %longest, i64 %idle_limit
  %long = icmp ugt i64 %spun, %limit
  %was_preempted = icmp ugt i64 %gap, %preempted
  %give_up = or i1 %long, %was_preempted
  br i1 %give_up, label %announce, label %spin

announce:
  %asleep_before = atomicrmw add ptr @sleepers, i32 1 seq_cst
  %bit_number = and i64 %index, 31
  %bit64 = shl i64 1, %bit_number
  %bit = trunc i64 %bit64 to i32
  br label %sleep

sleep:
  %asleep_state = load atomic i64, ptr @region seq_cst, align 8
  %is_published = icmp ne i64 %asleep_state, %seen
  br i1 %is_published, label %awake, label %block

block:
  %low = trunc i64 %seen to i32
  call void @futex_wait(ptr @region, i32 %low, i32 %bit)
  br label %sleep

awake:
  %awake_before = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  br label %arrived

arrived:
  %result = phi i64 [ %state, %spin ], [ %asleep_state, %awake ]
  br i1 %between_calls, label %learn, label %return

learn:
  %end = call i64 @ticks()
  %wait = sub i64 %end, %start
  %bound = shl i64 %longest, 2
  %bounded = call i64 @llvm.umin.i64(i64 %wait, i64 %bound)
  %difference = sub i64 %bounded, %mean
  %step = ashr i64 %difference, 3
  %new_mean = add i64 %mean, %step
  store i64 %new_mean, ptr %mean_wait
  br label %return

return:
  ret i64 %result
}

; Wake workers 1 to parts-1: each sleeps with the bit of its number.
define internal void @wake_workers(i64 %parts) {
  %few = icmp ult i64 %parts, 32
  %shift = select i1 %few, i64 %parts, i64 32
  %power = shl i64 1, %shift
  %mask64 = sub i64 %power, 2
  %mask_few = trunc i64 %mask64 to i32
  %mask = select i1 %few, i32 %mask_few, i32 -1
  call void @futex_wake(ptr @region, i32 %mask)
  ret void
}

; Make all workers return: they must be joined.
define void @tilewright_stop_workers() {
  store atomic i32 1, ptr @stopping seq_cst, align 4
  call void @close_region()
  call void @futex_wake(ptr @region, i32 -1)
  ret void
}

; Publish a region without chunks.
define internal void @close_region() {
  %state = load atomic i64, ptr @region monotonic, align 8
  %last_epoch = lshr i64 %state, 16
  %epoch = add i64 %last_epoch, 1
  %new_state = shl i64 %epoch, 16
  store atomic i64 %new_state, ptr @region seq_cst, align 8
  ret void
}

; Forget workers, calls and locks: of a forked child, in which only the calling thread goes on, or after all workers returned.
define void @tilewright_reset_team() {
  call void @close_region()
  store atomic i32 0, ptr @stopping seq_cst, align 4
  store atomic i32 0, ptr @sleepers seq_cst, align 4
  store atomic i32 0, ptr @calls seq_cst, align 4
  store atomic i32 0, ptr @lock seq_cst, align 4
  store atomic i32 0, ptr @borrowing seq_cst, align 4
  store atomic i32 0, ptr @borrowed seq_cst, align 4
  call void @stop_lending()
  ret void
}

; Return the clock, to calibrate it.
define i64 @tilewright_ticks() {
  %now = call i64 @ticks()
  ret i64 %now
}

declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
