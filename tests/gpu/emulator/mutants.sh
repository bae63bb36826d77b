#!/bin/sh
# Plants one mistake at a time in kernels/cuda/ and runs the test that must notice. Run by hand after a change of the kernels
# or their tests: it says which mistakes would pass, and which of the others showed as a race.
#   sh tests/gpu/emulator/mutants.sh [BUILD [PATTERN]]   (build/test; only mutants whose line matches)
# Exit 0: every one was noticed; 1: some were not, or what is to be changed is no longer there.
set -eu

cd "$(dirname "$0")/../../.."
build=${1:-build/test}
pattern=${2:-.}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
failed=0

# file ~ test ~ text ~ instead
list() {
    cat <<'END'
attention_bf16.cu~attention~(back < 0 ||~(back < -1 ||
attention_bf16.cu~attention~back >= window~back > window
attention_bf16.cu~attention~at.first - shape.window + 1 : 0~at.first + 1 : 0
attention_bf16.cu~attention~__syncthreads(); // No thread needs the keys any more.~
attention_bf16.cu~attention~__syncthreads(); // The keys have arrived, and no thread needs the values any more.~
attention_bf16.cu~attention~__syncthreads(); // The values have arrived.~
attention_bf16.cu~attention~evq_copy_wait<0>();~evq_copy_wait<1>();
attention_bf16.cu~attention~evq_copy_wait<1>();~evq_copy_wait<2>();
attention_bf16.cu~attention~sums[s][d][half * 2 + 1] *= shrink;~
attention_bf16.cu~attention~kept.total[s][half] * shrink + total~kept.total[s][half] + total
attention_bf16.cu~attention~a[s][1] = evq_pair(left[2], left[3])~a[s][1] = evq_pair(right[0], right[1])
attention_bf16.cu~attention~evq_ldmatrix_turned(b, ~evq_ldmatrix(b, 
attention_bf16.cu~attention~end - key);~BLOCK);
attention_bf16.cu~attention~(int64_t)(head / shape.group) * shape.step~(int64_t)(head % shape.group) * shape.step
attention_bf16.cu~attention~ahead >= BLOCK - 1 &&~ahead >= BLOCK - 32 &&
attention_bf16.cu~attention~ahead > -16 * STACKS &&~ahead > 0 &&
attention_bf16.cu~attention~ahead - BLOCK + 1 < shape.window~ahead - BLOCK + 2 < shape.window
attention_bf16.cu~attention~there >= COUNT~there >= COUNT - 1
attention_bf16.cu~attention~row + r < there~row + r <= there
attention_bf16.cu~attention~if (!whole) {~if (false) {
attention_bf16.cu~attention~threadIdx.x / 8 % SIDE +~
attention_bf16.cu~attention~row_top(top) * scale~row_top(top)
attention_bf16.cu~attention~power + 1.0f~power + 2.0f
attention_bf16.cu~attention~sinks + head~sinks
attention_fp32.cu~attention~apart < 0 ||~apart < -1 ||
attention_fp32.cu~attention~apart >= shape.window~apart > shape.window
attention_fp32.cu~attention~left <= 0 ||~
attention_fp32.cu~attention~shape.both && back < 0~back < 0
attention_bf16.cu~attention~key >= there ||~
attention_bf16.cu~attention~abs(back) >= window~abs(back) > window
attention_fp32.cu~attention~at.first - shape.window + 1 : 0~at.first + 1 : 0
attention_fp32.cu~attention~__syncthreads(); // No thread needs the values of the block before any more.~
attention_fp32.cu~attention~__syncthreads(); // The queries and keys have arrived.~
attention_fp32.cu~attention~__syncthreads(); // No thread needs the keys any more.~
attention_fp32.cu~attention~__syncthreads(); // The values and the weights have arrived.~
attention_fp32.cu~attention~kept.total[r] *= shrink;~
attention_fp32.cu~attention~kept.sums[r][c] *= shrink;~
attention_fp32.cu~attention~row < there && c < size~c < size
attention_fp32.cu~attention~row < there && c < size~row < there
attention_fp32.cu~attention~tanhf(scaled / shape.cap) * shape.cap~tanhf(scaled / shape.cap)
attention_fp32.cu~attention~expf(*sink - kept.top[r])~expf(*sink)
attention_fp32.cu~attention~(head / shape.group)~(head % shape.group)
attention_fp32.cu~attention~query >= at.count || column >= size~column >= size
norm.cu~kernels~sum += c < shape.n ? values[p][i] * values[p][i] : 0.0f~sum += values[p][i] * values[p][i]
norm.cu~kernels~shape->n <= 2 * warp_most~shape->n <= 2 * warp_most + 8
norm.cu~kernels~shape->n <= 4 * warp_most~shape->n <= 4 * warp_most + 8
norm.cu~kernels~shape->n <= 8 * warp_most~shape->n <= 8 * warp_most + 8
norm.cu~kernels~ && column % 4 == 0~
norm.cu~kernels~in->stride % 4 == 0 && out->stride % 4 == 0;~true;
norm.cu~kernels~__syncthreads(); // The previous content of sums was read.~
norm.cu~kernels~__syncthreads(); // The sum of every warp is stored.~
logsum.cu~kernels~__syncthreads(); // The state of every warp is stored.~
convert.cu~kernels~__syncthreads(); // The tile has arrived.~
convert.cu~kernels~__syncthreads(); // No thread may still read the tile when the next one is written.~
rope.cu~kernels~head < rope.first_heads~head <= rope.first_heads
rope.cu~kernels~x * cosines[i] - y~x * cosines[i] + y
rope.cu~kernels~x[i] * cosines[i] - y[i]~x[i] * cosines[i] + y[i]
rope.cu~kernels~evq_load(norm + half + at, to_y)~evq_load(norm + at, to_y)
rope.cu~kernels~y[i] = y[i] * cosines[i] + x[i]~y[i] = y[i] * cosines[i] + turned
rope.cu~kernels~stride % PAIRS == 0~true
rope.cu~kernels~rope->column % PAIRS == 0~true
rope.cu~kernels~head < rope.heads; //~true; //
rope.cu~kernels~evq_warp_sum<LANES>~evq_warp_sum
rope.cu~kernels~begin += at_once~begin += at_once + 1
logsum.cu~kernels~evq_load(bias + c, shifts)~evq_load(bias, shifts)
logsum.cu~kernels~logits[i] == top ? c + i~logits[i] >= top ? c
logsum.cu~kernels~fmaxf(top, -FAR)~top
logsum.cu~kernels~fabsf(all.top) < FAR ?~true ?
logsum.cu~kernels~mine.total *= evq_exp2(exponent_of(mine.top) - exponent_of(top));~
logsum.cu~kernels~(double)exponent_of(all.top) -~(double)all.top * (double)LOG2_E -
logsum.cu~kernels~fours + (int32_t)threadIdx.x < n~fours + (int32_t)threadIdx.x < n - 1
logsum.cu~kernels~b.arg < a.arg~b.arg > a.arg
logsum.cu~kernels~isnan(all.total) ? -1 : all.arg~all.arg
logsum.cu~kernels~b.total * evq_exp2(exponent_of(b.top) - base)~b.total
convert.cu~kernels~tile[x * (TILE + 1) + line]~tile[line * (TILE + 1) + x]
embed.cu~kernels~op->n % 8 == 0 && lookup->table.stride % 8 == 0 && out->stride % 8 == 0~op->n % 8 == 0
embed.cu~kernels~place * n + c~place * n
embed.cu~kernels~which[row]~which[row] + 1
pointwise.cu~kernels~n % 8 == 0 && in->stride % 8 == 0 && out->stride % 8 == 0;~n % 4 == 0;
pointwise.cu~kernels~row * residual_stride~row * out_stride
losses.cu~backend~c < label~c <= label
step.c~backend~.adds = op->residual != 0,~.adds = 0,
step.c~backend~.first_heads = op->heads,~.first_heads = 1,
step.c~backend~product.adds = 0;~
step.c~backend~.asked_rows = EVQ_CUDA_ASKED_ROWS~.asked_rows = (int32_t)evq_cuda_up(rows, EVQ_CUDA_ROWS)
step.c~backend~.asked_rows = evq_cuda_score_chunk(state->plan->compute, op->n)~.asked_rows = (int32_t)evq_cuda_up(count, EVQ_CUDA_ROWS)
run.c~backend~length - first < queries ? length - first : queries~queries
prepare.c~checkpoints~status == EVQ_OK && lacked~false
pipeline.c~checkpoints~(void)!evq_cuda_make_room(state, plan, NULL);~;
prepare.c~checkpoints~status == EVQ_E_NOMEM && !lacked~false
weights.c~checkpoints~state->weights[i].rows_put == 0 || ~
weights.c~checkpoints~weight->stride * (weight->bf16 ? 2 : 4)~weight->columns * (weight->bf16 ? 2 : 4)
product.c~product~a->asked_rows == b->asked_rows &&~
product.c~product~schemes = EVQ_CUBLASLT_REDUCE_NONE~schemes = 2
product.c~backend~schemes = EVQ_CUBLASLT_REDUCE_NONE~schemes = 2
product.c~product~if (is_refusal(code) && !evq_cublas_lacks_memory()) {~if (false) {
product.c~product~if (is_refusal(code) && !evq_cublas_lacks_memory()) {~if (is_refusal(code)) {
cublas.c~product~code != CUBLAS_ALLOC_FAILED && evq_cublas_lacks_memory()~false
cublas.c~product~cudaMemGetInfo(&unused, &total) == cudaSuccess &&~cudaMemGetInfo(&unused, &total) != cudaErrorNotReady &&
pipeline.c~checkpoints~|| status == EVQ_E_NOMEM;~;
put.c~checkpoints~|| status == EVQ_E_NOMEM;~;
put.c~checkpoints~cudaStreamWaitEvent(state->copies, stage->converted, 0)~cudaSuccess
put.c~checkpoints~cudaStreamWaitEvent(state->stream, stage->copied, 0)~cudaSuccess
put.c~checkpoints~cudaEventRecord(stage->copied, state->copies)~cudaSuccess
put.c~checkpoints~cudaEventRecord(stage->converted, state->stream)~cudaSuccess
put.c~put~(cudaStreamSynchronize(state->copies), "copy a weight"~(cudaSuccess, "copy a weight"
put.c~checkpoints~(cudaStreamSynchronize(state->stream), "convert a weight"~(cudaSuccess, "convert a weight"
put.c~put~cudaEventSynchronize(state->stages[last % EVQ_CUDA_STAGES].copied)~cudaSuccess
pipeline.c~checkpoints~(cudaStreamSynchronize(state->stream), "run the plan"~(cudaSuccess, "run the plan"
pipeline.c~checkpoints~(void)cudaStreamSynchronize(~(void)(
END
}

commands=$(ninja -C "$build" -t commands test_cuda_kernels test_cuda_attention test_cuda_backend test_cuda_checkpoints \
    test_cuda_put test_cuda_product)
list | grep -e "$pattern" >"$place/list"
while IFS='~' read -r file test text instead; do
    mkdir -p "$place/kernels/cuda"
    FROM=$text TO=$instead perl -pe 's/\Q$ENV{FROM}\E/$ENV{TO}/g' "kernels/cuda/$file" >"$place/kernels/cuda/$file"
    if cmp -s "kernels/cuda/$file" "$place/kernels/cuda/$file"; then
        echo "GONE     $file: $text"
        failed=1
        continue
    fi
    compile=$(printf '%s\n' "$commands" | grep -e "-c [^ ]*kernels/cuda/$file\$" | tail -1 |
        sed "s^-o [^ ]*^-o $place/mutant.o^; s^-c [^ ]*^-c $place/kernels/cuda/$file^; s^-Werror ^^")
    link=$(printf '%s\n' "$commands" | grep -e "-o bin/test_cuda_$test " | tail -1 |
        sed "s^ [^ ]*test_cuda_$test\.dir/__/kernels/cuda/$file\.o^^; s^-o bin/test_cuda_$test ^$place/mutant.o -o $place/test ^")
    (cd "$build" && eval "$compile" && eval "$link") >"$place/log" 2>&1 || {
        echo "BROKEN   $file: $text"
        cat "$place/log"
        failed=1
        continue
    }
    if timeout 600 "$place/test" >"$place/log" 2>&1; then
        echo "SURVIVED $file: $text -> $instead"
        failed=1
    else
        grep -q "emulator: a race" "$place/log" && how=race || how=noticed
        printf '%-8s %s: %s -> %s\n' "$how" "$file" "$text" "$instead"
    fi
done <"$place/list"
exit "$failed"
