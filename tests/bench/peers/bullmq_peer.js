// BullMQ: `node bullmq_peer.js worker CONCURRENCY`, or `node bullmq_peer.js submit KIND COUNT MS FILE`.
// BULLMQ_JS: a module that exports Queue and Worker; PEER_DURABLE: lock and stalled interval in seconds; PEER_REMOVE: no record
// of a job is kept once it ended.
'use strict';
const fs = require('fs');
const { Queue, Worker } = require(process.env.BULLMQ_JS || 'bullmq');

const EDGE = 20; // As jobs.py.
const warm = (count) => Math.floor(count / 5);
const durable = Number(process.env.PEER_DURABLE || 0);
const connection = { host: '127.0.0.1', port: Number(process.env.PEER_PORT) };
const now = () => String(Number(process.hrtime.bigint()) / 1e9); // CLOCK_MONOTONIC.
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function submit(kind, count, ms, file) {
    // The events of jobs that leave a trace are counted afterwards: all are kept.
    const streams = kind === 'work' ? { events: { maxLen: 1000000 } } : {};
    const queue = new Queue('peer', { connection, streams });
    queue.on('error', () => {});
    await queue.waitUntilReady();
    const began = process.hrtime.bigint();
    const add = async (number) => {
        for (;;) {
            try {
                // Ids that are whole numbers are refused.
                return await queue.add(kind, { number, count, ms, file }, { jobId: `t${number}`, attempts: durable ? 5 : 1 });
            } catch (error) {
                if (error.name === 'TypeError') {
                    throw error;
                }
            } // Whether it arrived is not known: again, under the same id.
        }
    };
    const rate = Number(process.env.PEER_RATE || 0);
    const flight = rate ? 1 : 100;
    for (let at = 0; at < count; at += flight) {
        if (rate) {
            await sleep(Math.max(0, (at / rate) * 1000 - Number(process.hrtime.bigint() - began) / 1e6));
        }
        await Promise.all(Array.from({ length: Math.min(flight, count - at) }, (_, i) => add(at + i)));
    }
    console.log(Number(process.hrtime.bigint() - began) / 1e9);
    await queue.close();
    process.exit(0);
}

function serve(concurrency) {
    const options = { connection, concurrency };
    if (durable) {
        Object.assign(options, { lockDuration: durable * 1000, stalledInterval: durable * 1000, maxStalledCount: 5 });
    }
    if (process.env.PEER_REMOVE) {
        Object.assign(options, { removeOnComplete: { count: 0 } });
    }
    const worker = new Worker('peer', async (job) => {
        const { number, count, ms, file } = job.data;
        if (job.name === 'work') {
            await sleep(ms);
            fs.appendFileSync(file, `${number}\n`);
        } else if ((number >= warm(count) && number < warm(count) + EDGE) || number >= count - EDGE) {
            fs.appendFileSync(file, `${now()}\n`);
        }
    }, options);
    worker.on('error', () => {});
}

const words = process.argv.slice(2);
if (words[0] === 'submit') {
    submit(words[1], Number(words[2]), Number(words[3]), words[4]);
} else {
    serve(Number(words[1]));
}
